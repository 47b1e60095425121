#include "train/optimizer.hpp"

#include <limits>

#include "core/status.hpp"
#include "nn/operators.hpp"

namespace rankone::train {

Optimizer::Optimizer(std::vector<nn::Parameter*> parameters, const TrainConfig& config)
    : parameters_(std::move(parameters)),
      factor_(Tensor::zeros({1}, Dtype::f32)),
      ok_(Tensor::zeros({1}, Dtype::i32)),
      beta1_(config.beta1),
      beta2_(config.beta2),
      weight_decay_(config.weight_decay),
      clip_(config.clip > 0 ? config.clip : std::numeric_limits<double>::infinity()) {
  for (const nn::Parameter* parameter : parameters_) {
    m_.push_back(Tensor::zeros(parameter->value.shape(), parameter->value.dtype()));
    v_.push_back(Tensor::zeros(parameter->value.shape(), parameter->value.dtype()));
  }
}

void Optimizer::zero_gradients(Context& context) const {
  for (const nn::Parameter* parameter : parameters_) nn::fill(context, parameter->grad, 0.0);
}

void Optimizer::add_norm(Context& context, const Tensor& sum) const {
  for (const nn::Parameter* parameter : parameters_) {
    nn::add_sum_of_squares(context, parameter->grad, sum);
  }
}

void Optimizer::apply(Context& context, std::int64_t t, double lr, const Tensor& sum) const {
  nn::clip_factor(context, sum, clip_, factor_, ok_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    nn::AdamW args;
    args.parameter = parameter.value;
    args.grad = parameter.grad;
    args.m = m_[i];
    args.v = v_[i];
    args.factor = factor_;
    args.ok = ok_;
    args.lr = lr;
    args.beta1 = beta1_;
    args.beta2 = beta2_;
    args.weight_decay = parameter.decays ? weight_decay_ : 0.0;
    args.step = t;
    nn::adamw(context, args);
  }
}

TensorFile Optimizer::state() const {
  TensorFile file;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const nn::Parameter& parameter = *parameters_[i];
    file.add("parameter." + parameter.name, parameter.value);
    file.add("m." + parameter.name, m_[i]);
    file.add("v." + parameter.name, v_[i]);
  }
  return file;
}

void Optimizer::restore(const TensorFile& from) const {
  const TensorFile own = state();
  // Everything is compared before anything is overwritten.
  if (from.tensors.size() != own.tensors.size()) {
    fail(Status::corrupt, "[checkpoint] it holds {} tensors (the model needs {})",
         from.tensors.size(), own.tensors.size());
  }
  for (const auto& [name, tensor] : own.tensors) {
    const Tensor& saved = from.at(name);
    if (!(saved.shape() == tensor.shape()) || saved.dtype() != tensor.dtype()) {
      fail(Status::corrupt, "[checkpoint] {} is {} {} (the model needs {} {})", name,
           rankone::name(saved.dtype()), saved.shape().str(), rankone::name(tensor.dtype()),
           tensor.shape().str());
    }
  }
  for (const auto& [name, tensor] : own.tensors) tensor.copy_from(from.at(name));
}

}  // namespace rankone::train
