"""librankone through ctypes: the structs of include/rankone/rankone.h over torch tensors.

A call is prepared once (its structs filled, its workspace asked for and allocated) and then run as
often as wanted, as a program in C would do it.
"""

import ctypes

import torch

CPU, CUDA = 0, 1
MAX_RANK = 8
DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.int64: 4}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MAX_RANK),
        ("strides", ctypes.c_int64 * MAX_RANK),
    ]


class Options(ctypes.Structure):
    _fields_ = [("device", ctypes.c_int32), ("device_index", ctypes.c_int32), ("threads", ctypes.c_int32)]


class Call(ctypes.Structure):
    _fields_ = [
        ("stream", ctypes.c_void_p),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_size_t),
        ("query", ctypes.POINTER(ctypes.c_size_t)),
    ]


def _struct(name, tensors, more=()):
    return type(name, (ctypes.Structure,), {"_fields_": [(t, Tensor) for t in tensors] + list(more)})


INPUTS = ("q", "e", "w", "v", "g", "b", "initial_state")
TwoKeyInputs = _struct("TwoKeyInputs", INPUTS, [("scale", ctypes.c_double)])
TwoKeyOutputs = _struct("TwoKeyOutputs", ("o", "final_state", "saved"))
TwoKeyCotangents = _struct("TwoKeyCotangents", ("o", "final_state", "saved"))
TwoKeyGrads = _struct("TwoKeyGrads", INPUTS)


def view(tensor):
    """The rankone_tensor over a torch tensor; an absent one for None."""
    result = Tensor()
    if tensor is not None:
        result.data = tensor.data_ptr()
        result.dtype = DTYPES[tensor.dtype]
        result.rank = tensor.dim()
        for axis in range(tensor.dim()):
            result.shape[axis] = tensor.shape[axis]
            result.strides[axis] = tensor.stride(axis)
    return result


def _fill(kind, tensors):
    result = kind()
    for name, tensor in tensors.items():
        setattr(result, name, view(tensor))
    return result


class Failure(RuntimeError):
    """What rankone_last_error said."""


class Prepared:
    """A call with its workspace. `run()` puts it on the stream that is current in torch."""

    def __init__(self, library, function, sequences, structs, keep):
        self.library, self.function, self.keep = library, function, keep
        self.structs = [ctypes.byref(s) for s in structs]
        self.keep = (structs, keep)
        self.sequences = sequences
        self.call = Call()
        needed = ctypes.c_size_t(0)
        self.call.query = ctypes.pointer(needed)
        self.run()
        self.call.query = None
        self.workspace_bytes = needed.value
        self.workspace = torch.empty(max(needed.value, 1), dtype=torch.uint8, device=library.device)
        self.call.workspace = self.workspace.data_ptr()
        self.call.workspace_bytes = needed.value

    def run(self):
        if self.library.device.type == "cuda":
            self.call.stream = torch.cuda.current_stream().cuda_stream
        status = self.function(self.library.context, self.sequences, *self.structs, ctypes.byref(self.call))
        if status != 0:
            raise Failure(self.library.dll.rankone_last_error(self.library.context).decode())


class Library:
    """One loaded library with one context on `device`, a torch.device."""

    def __init__(self, path, device):
        self.dll, self.device = ctypes.CDLL(path), device
        pointer, status = ctypes.c_void_p, ctypes.c_int
        self.dll.rankone_version.restype = ctypes.c_char_p
        self.dll.rankone_last_error.restype = ctypes.c_char_p
        self.dll.rankone_last_error.argtypes = [pointer]
        self.dll.rankone_context_create.restype = status
        self.dll.rankone_context_create.argtypes = [pointer, pointer, ctypes.c_char_p, ctypes.c_size_t]
        self.dll.rankone_sequences_dense.restype = status
        self.dll.rankone_sequences_dense.argtypes = [pointer, ctypes.c_int64, ctypes.c_int64, pointer]
        for name in ("rankone_two_key", "rankone_two_key_vjp", "rankone_two_key_step"):
            getattr(self.dll, name).restype = status
            # context, sequences, inputs, two structs of the function's, call
            getattr(self.dll, name).argtypes = [pointer] * (5 if name.endswith("step") else 6)
        self.dll.rankone_two_key.argtypes = [pointer] * 5
        self.dll.rankone_two_key_saved.restype = status
        self.dll.rankone_two_key_saved.argtypes = [pointer] * 4
        self.version = self.dll.rankone_version().decode()
        cuda = device.type == "cuda"
        options = Options(CUDA if cuda else CPU, torch.cuda.current_device() if cuda else 0, 0)
        context, message = ctypes.c_void_p(), ctypes.create_string_buffer(512)
        if self.dll.rankone_context_create(
            ctypes.byref(options), ctypes.byref(context), message, len(message)
        ):
            raise Failure(message.value.decode())
        self.context = context

    def _sequences(self, tensor):
        handle = ctypes.c_void_p()
        batch, time = tensor.shape[:2]
        if self.dll.rankone_sequences_dense(self.context, batch, time, ctypes.byref(handle)):
            raise Failure(self.dll.rankone_last_error(self.context).decode())
        return handle

    def _inputs(self, x):
        inputs = _fill(TwoKeyInputs, {"q": x.q, "e": x.k, "w": x.k, "v": x.v, "g": x.g, "b": x.b})
        inputs.initial_state = view(x.state)
        inputs.scale = x.scale
        return inputs

    def saved(self, x):
        """Memory for what forward() can leave to vjp(); None where that is nothing."""
        numbers, inputs = ctypes.c_int64(0), self._inputs(x)
        if self.dll.rankone_two_key_saved(
            self.context, self._sequences(x.q), ctypes.byref(inputs), ctypes.byref(numbers)
        ):
            raise Failure(self.dll.rankone_last_error(self.context).decode())
        return torch.empty(numbers.value, device=self.device) if numbers.value > 0 else None

    def forward(self, x, saved=None):
        """o [B, T, H, V] from the inputs `x` of compare.py; returns (call, o)."""
        o = torch.empty_like(x.v)
        outputs = _fill(TwoKeyOutputs, {"o": o, "saved": saved})
        structs = [self._inputs(x), outputs]
        keep = (x, o, saved)
        return Prepared(self, self.dll.rankone_two_key, self._sequences(x.q), structs, keep), o

    def vjp(self, x, do, saved=None):
        """The gradients of sum(o * do); returns (call, {name: gradient}). k is e and w at once, and so are
        their gradients, for the sum of the two. `saved`: filled by forward()."""
        grads = {"q": x.q, "e": x.k, "v": x.v, "g": x.g, "b": x.b}
        grads = {name: torch.empty_like(t) for name, t in grads.items() if t is not None}
        grads["w"] = grads["e"]
        cotangents = _fill(TwoKeyCotangents, {"o": do, "saved": saved})
        structs = [self._inputs(x), cotangents, _fill(TwoKeyGrads, grads)]
        keep = (x, do, grads, saved)
        call = Prepared(self, self.dll.rankone_two_key_vjp, self._sequences(x.q), structs, keep)
        return call, grads

    def step(self, x):
        """One decoding step; x.state is updated in place. Returns (call, o)."""
        o = torch.empty_like(x.v)
        structs = [self._inputs(x), view(o)]
        return Prepared(self, self.dll.rankone_two_key_step, self._sequences(x.q), structs, (x, o)), o
