// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The standard headers that most sources include, for the build to parse once. No source counts on it: with
// -Db_pch=false each includes what it uses, and the test of the subproject builds that way.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>
