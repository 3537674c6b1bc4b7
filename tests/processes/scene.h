// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// A program that brings itself into one state of the library and ends, forks or unloads the library in it. It
// finds the library by dlopen, as a plug-in does, and prints only what is wrong.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpumem/gpumem.h"

namespace processes {

// What every state and every way to end is called; ends_test.cpp runs each pair in a process of its own.
inline constexpr std::array kStates = {
    "loaded",            // the library is loaded, nothing is open
    "instance",          // an instance is open
    "default_instance",  // the one of the process
    "objects",           // one of each kind lives, registered memory among them
    "queued",            // a stream stands at a value that nobody writes, with work behind it
    "host_function",     // a host function runs, with work behind it
    "synchronizing",     // a thread waits for a stream and another one for an event
    "opening",           // a thread is inside gpumem_instance_open
    "opening_default",   // a thread is inside gpumem_instance_default
    "closing",           // a thread is inside a forced close that waits for work
    "destroying",        // a thread is inside gpumem_stream_destroy, which waits for another thread's call
    "closed",            // an instance was closed by force with all its objects
    "lost",              // the device is lost
    "log_set",           // a log function is set
    "in_log_function",   // it happens inside the log function
    "in_host_function",  // it happens inside a host function
    "busy",              // threads make, use and destroy objects without pause
    "copied",            // the threads for copies of ordinary memory have started, and wait
    "copying",           // they copy without pause, for two threads of the program
};

inline constexpr std::array kActions = {
    "exit",         // with all exit handlers
    "quick_exit",   // with those of at_quick_exit only
    "_exit",        // with none
    "abort",        // SIGABRT
    "terminate",    // SIGTERM from outside
    "unload",       // dlclose, then on as if nothing had happened
    "unload_exit",  // dlclose, then exit
    "fork_exit",    // a child that tries everything and exits; the parent goes on
    "fork__exit",   // the same with _exit
    "fork_twice",   // a child with an instance of its own forks again
};

inline constexpr int kExitCode = 7;

// The functions of the library, found at run time.
extern gpumem_table api;

// Says on the error output what does not hold; the program's exit code is then 1.
void expect(bool holds, const std::string& what);
void expect_status(gpumem_status expected, gpumem_status actual, const std::string& what);
bool failed();

// Holds whoever arrives first until it is opened; others, such as a forked child, pass.
class Gate {
 public:
  Gate();
  void arrive();
  void wait_arrived();  // until somebody stands there
  void open();

 private:
  std::atomic<bool> used_{false};
  int arrived_[2];
  int open_[2];
};

struct Scene {
  gpumem_backend backend = GPUMEM_BACKEND_HOST;
  gpumem_instance instance = nullptr;
  gpumem_device device = nullptr;
  gpumem_memory memory = nullptr;
  gpumem_memory pinned = nullptr;
  gpumem_memory registered = nullptr;
  gpumem_stream stream = nullptr;
  gpumem_event event = nullptr;
  gpumem_pool pool = nullptr;
  void* block = nullptr;
  unsigned char* device_bytes = nullptr;
  unsigned char* pinned_bytes = nullptr;
  unsigned char* registered_bytes = nullptr;
  // What a child may get instead of FORKED, because the parent had ended the handle already.
  gpumem_status ended = GPUMEM_ERROR_FORKED;
  bool inside_log_function = false;   // no call at all is allowed
  bool inside_host_function = false;  // none that makes something
  // What decides whether a child can have a default instance.
  gpumem_backend default_backend = GPUMEM_BACKEND_HOST;
  bool driver_initialised = false;
};

// Opens an instance of a backend with one device memory, pinned memory, registration, stream, event and pool
// with a block, and puts a pattern into each memory.
void open_scene(Scene& scene);
// Checks the patterns, destroys all and closes the instance, which must find nothing alive.
void close_scene(Scene& scene);

// Brings the process into a state, calls `act` in it, and leaves it again. False if there is no such state.
bool enter(const std::string& state, gpumem_backend backend, const std::function<void(Scene&)>& act);

// What a forked child can do: every call with a handle of its parent fails, and an instance of its own works.
void try_everything(const Scene& parents);
// Makes, uses and destroys one of each kind in an instance of the host backend of its own.
void use_own_instance();

// Makes calls in an order that the seed decides, until it is killed; writes a byte to standard output after
// each.
[[noreturn]] void churn(gpumem_backend backend, uint32_t seed);

}  // namespace processes
