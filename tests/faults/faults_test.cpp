// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The program: a test for each scenario, backend and kind of fault, and the proof that no public function is
// left out. With --first-use it runs the scenarios that need a process in which nothing has called the
// library yet.
#include <gtest/gtest.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <regex>
#include <set>

#include "../failures_last.h"
#include "loop.h"

namespace faults {
namespace {

class Loops : public testing::Test {
 public:
  Loops(const Scenario& scenario, gpumem_backend backend, Kind kind)
      : scenario_(scenario), backend_(backend), kind_(kind) {}

 private:
  void TestBody() override {
    ASSERT_TRUE(backend_ != GPUMEM_BACKEND_CUDA || have_fake_driver()) << "no fake driver in LD_LIBRARY_PATH";
    if (first_use) {
      run_loops_first(scenario_, backend_, kind_);
    } else {
      run_loops(scenario_, backend_, kind_);
    }
  }

  const Scenario& scenario_;
  const gpumem_backend backend_;
  const Kind kind_;

 public:
  static inline bool first_use = false;
};

const std::vector<Scenario>& common_scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> result;
    for (const auto& some :
         {instance_scenarios(), memory_scenarios(), managed_scenarios(), vmm_scenarios(), buffer_scenarios(),
          pool_scenarios(), stream_scenarios(), copy_scenarios(), host_scenarios(), share_scenarios()}) {
      result.insert(result.end(), some.begin(), some.end());
    }
    return result;
  }();
  return all;
}

const std::vector<Scenario>& first_use_scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> result = first_scenarios();
    for (const Scenario& one : first_buffer_scenarios())
      result.push_back(one);
    return result;
  }();
  return all;
}

std::string identifier(std::string name) {
  for (char& letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  }
  return name;
}

void add(const Scenario& scenario, const char* backend_name, gpumem_backend backend, const char* kind_name,
         Kind kind) {
  const std::string name = identifier(scenario.name) + "." + kind_name;
  testing::RegisterTest(
      (std::string(Loops::first_use ? "first_use_" : "") + backend_name).c_str(), name.c_str(), nullptr,
      nullptr, __FILE__, __LINE__,
      [&scenario, backend, kind]() -> testing::Test* { return new Loops(scenario, backend, kind); });
}

void add_all(const std::vector<Scenario>& scenarios) {
  for (const Scenario& scenario : scenarios) {
    if ((scenario.backends & kHost) != 0) {
      add(scenario, "host", GPUMEM_BACKEND_HOST, "system", Kind::kSystem);
      add(scenario, "host", GPUMEM_BACKEND_HOST, "allocation", Kind::kAllocation);
    }
#ifdef HAVE_CUDA_HEADERS
    if ((scenario.backends & kCuda) != 0) {
      add(scenario, "cuda", GPUMEM_BACKEND_CUDA, "system", Kind::kSystem);
      add(scenario, "cuda", GPUMEM_BACKEND_CUDA, "allocation", Kind::kAllocation);
      add(scenario, "cuda", GPUMEM_BACKEND_CUDA, "driver", Kind::kDriver);
    }
#endif
  }
}

// The names in the version script.
std::set<std::string> exported() {
  std::ifstream file(GPUMEM_MAP);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::regex name("\\b(gpumem_\\w+);");
  std::set<std::string> names;
  for (std::sregex_iterator found(text.begin(), text.end(), name), end; found != end; ++found)
    names.insert((*found)[1]);
  return names;
}

void every_public_function_is_in_a_scenario() {
  std::set<std::string> missing = exported();
  ASSERT_FALSE(missing.empty());
  for (const auto* scenarios : {&common_scenarios(), &first_use_scenarios()}) {
    for (const Scenario& scenario : *scenarios) {
      for (const Step& step : scenario.steps)
        missing.erase(step.function);
    }
  }
  EXPECT_EQ(missing, std::set<std::string>());
}

void there_are_many_scenarios() {
  std::set<std::string> names;
  for (const Scenario& scenario : common_scenarios())
    names.insert(identifier(scenario.name));
  EXPECT_EQ(names.size(), common_scenarios().size()) << "two have one name";
  EXPECT_GE(names.size(), 30u);
}

// A test that is a function.
void add(const char* suite, const char* name, void (*body)()) {
  class Test : public testing::Test {
   public:
    explicit Test(void (*function)()) : function_(function) {}

   private:
    void TestBody() override { function_(); }
    void (*function_)();
  };
  testing::RegisterTest(suite, name, nullptr, nullptr, __FILE__, __LINE__,
                        [body]() -> testing::Test* { return new Test(body); });
}

}  // namespace
}  // namespace faults

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--peer") return faults::run_peer(argv[2]);
  testing::InitGoogleTest(&argc, argv);
  FailuresLast::install();
  setenv("FAKE_CUDA_GRANULARITY", "65536", 0);  // clearing and copying blocks would take most of the time
  faults::Loops::first_use = argc == 2 && std::string(argv[1]) == "--first-use";
  if (argc > 1 && !faults::Loops::first_use) {
    std::cerr << "Usage: gpumem_faults [--first-use] [--gtest_...]\n";
    return 2;
  }
  if (faults::Loops::first_use) {
    faults::add("first_use", "log_in_a_child", faults::run_log_in_child);
    if (faults::have_fake_driver())
      faults::add("first_use", "fork_around_init", faults::run_fork_around_init);
    faults::add_all(faults::first_use_scenarios());
  } else {
    faults::add("coverage", "every_public_function_is_in_a_scenario",
                faults::every_public_function_is_in_a_scenario);
    faults::add("coverage", "there_are_many_scenarios", faults::there_are_many_scenarios);
    faults::add("channel", "sending_without_memory", faults::run_sending_without_memory);
    faults::add("channel", "receiving_without_memory", faults::run_receiving_without_memory);
    faults::add("serving", "without_memory_on_the_sharing_threads",
                [] { faults::run_serving_without_memory(faults::Kind::kServingAllocation); });
    faults::add("serving", "without_memory_elsewhere",
                [] { faults::run_serving_without_memory(faults::Kind::kAllocation); });
    faults::add("serving", "lending_without_memory", faults::run_lending_without_memory);
    faults::add("serving", "closing_without_memory", faults::run_closing_without_memory);
    faults::add("serving", "publishing_without_memory", faults::run_publishing_without_memory);
    faults::add("serving", "withdrawing_without_memory", faults::run_withdrawing_without_memory);
    faults::add("serving", "waiting_without_memory", faults::run_waiting_without_memory);
    faults::add_all(faults::common_scenarios());
  }
  return RUN_ALL_TESTS();
}
