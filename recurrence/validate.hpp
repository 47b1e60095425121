#pragma once

// What every public function of this layer checks before a backend sees the call. Each returns what
// the choice of the backend needs, or fails with invalid_argument.

#include "recurrence/backend.hpp"

namespace rankone::recurrence {

CallShape validate(const Context&, const Sequences&, const TwoKey&);
CallShape validate(const Context&, const Sequences&, const TwoKey&, const TwoKeyOut&);
CallShape validate(const Context&, const Sequences&, const TwoKey&, const TwoKeyCotangents&,
                   const TwoKeyGrads&);
// `numbers`: what two_key_saved() or precondition_saved() says.
void validate_saved(std::string_view operation, const Context&, const Tensor& saved,
                    std::int64_t numbers);
CallShape validate(const Context&, const Sequences&, const Precondition&);
CallShape validate(const Context&, const Sequences&, const Precondition&, const PreconditionOut&);
CallShape validate(const Context&, const Sequences&, const Precondition&,
                   const PreconditionCotangents&, const PreconditionGrads&);
CallShape validate(const Context&, const Decay&, const DecayOut&);
CallShape validate(const Context&, const Decay&, const DecayCotangents&, const DecayGrads&);
CallShape validate(const Context&, const Sequences&, const Gain&, const GainOut&);
CallShape validate(const Context&, const Sequences&, const Gain&, const GainCotangents&,
                   const GainGrads&);
CallShape validate(const Context&, const Sequences&, const Mesa&, const MesaOut&);
CallShape validate(const Context&, const Sequences&, const Mesa&, const MesaCotangents&,
                   const MesaGrads&);
CallShape validate(const Context&, const Sequences&, const Longhorn&, const LonghornOut&);
CallShape validate(const Context&, const Sequences&, const Longhorn&, const LonghornCotangents&,
                   const LonghornGrads&);

}  // namespace rankone::recurrence
