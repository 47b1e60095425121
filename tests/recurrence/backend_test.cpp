// The choice of a backend.

#include "recurrence/backend.hpp"

#include "support/recurrence_support.hpp"

namespace rankone::test {
namespace {

using namespace rankone::recurrence;

// ---- the choice of a backend -------------------------------------------------------------------

TEST(BackendChoice, FollowsTheList) {
  const CallShape f32{Dtype::f32, Device::cpu, false};
  EXPECT_EQ(select_backend(make_context("cpu"), f32).name(), "cpu");
  EXPECT_EQ(select_backend(make_context("reference"), f32).name(), "reference");
  EXPECT_EQ(select_backend(make_context("cuda"), f32).name(), "reference");
  EXPECT_EQ(select_backend(make_context("cpu"), {Dtype::f64, Device::cpu, false}).name(),
            "reference");
  EXPECT_EQ(select_backend(make_context("cpu"), {Dtype::f32, Device::cpu, true}).name(),
            "reference");
  EXPECT_THROW(select_backend(make_context(), {Dtype::f32, Device::cuda, false}), Error);
}

TEST(BackendChoice, ARegisteredBackendComesFirst) {
  const CallShape f32{Dtype::f32, Device::cpu, false};
  Context context = make_context("reference");
  {
    // Another backend under a name of the list; the same one twice is taken off once at a time.
    const RegisteredBackend outer(reference_backend());
    const RegisteredBackend inner(reference_backend());
    EXPECT_EQ(&select_backend(context, f32), &reference_backend());
  }
  EXPECT_EQ(&select_backend(context, f32), &reference_backend());
}

}  // namespace
}  // namespace rankone::test
