// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Each way to end, fork or unload in each state, in a process of its own: the wait status is the expected
// one, nothing is printed, and the driver gets no call that comes too late.
#include "process.h"
#include "scene.h"

namespace processes {
namespace {

class Ends : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

int expected_status(const std::string& action) {
  if (action == "abort") return SIGABRT;
  if (action == "terminate") return SIGTERM;
  const bool goes_on = action == "unload" || action.rfind("fork", 0) == 0;
  return (goes_on ? 0 : kExitCode) << 8;
}

// Whether other threads may be in the allocator: those of the program, or that of the fake driver which looks
// at the value again and again.
bool allocates_at_fork(const std::string& state) {
  return state == "busy" || state == "queued" || state == "copying";
}

TEST_P(Ends, in_state) {
  const auto [state, action] = GetParam();
  if (allocates_at_fork(state) && std::string(action).rfind("fork", 0) == 0)
    REQUIRE_FORK_BESIDE_ALLOCATIONS();
  std::vector<std::string> environment = {
      std::string("GPUMEM_BACKEND=") + (conformance::on_host() ? "host" : "cuda"),
      "FAKE_CUDA_REPORT=/proc/self/fd/2"};
  // A leak checker cannot stop the threads that a forked child has not got.
  if (std::string(action) == "fork_exit") environment.push_back("LSAN_OPTIONS=detect_leaks=0");
  const Ending ending = Process({state, action}, environment).wait();
  EXPECT_EQ(ending.wait_status, expected_status(action)) << ending;
  EXPECT_EQ(ending.out, "");
  EXPECT_EQ(ending.err, "");
}

INSTANTIATE_TEST_SUITE_P(Processes, Ends,
                         testing::Combine(testing::ValuesIn(kStates), testing::ValuesIn(kActions)),
                         [](const testing::TestParamInfo<Ends::ParamType>& pair) {
                           return std::string(std::get<0>(pair.param)) + "_" + std::get<1>(pair.param);
                         });

TEST(Scene, an_unknown_state_or_action_is_refused) {
  EXPECT_EQ(Process({"nothing", "exit"}).wait().wait_status, 2 << 8);
  EXPECT_EQ(Process({"loaded", "nothing"}).wait().wait_status, 2 << 8);
}

}  // namespace
}  // namespace processes
