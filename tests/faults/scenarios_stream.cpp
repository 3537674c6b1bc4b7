// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Scenarios of streams and events, and of copies and fills.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "scenario.h"

namespace faults {
namespace {

constexpr uint64_t kSize = 3 * kPage + 40;
constexpr uint64_t kHour = 3'600'000'000'000;  // in nanoseconds

void count(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

constinit std::atomic<int> counter{0};

// The address of a memory, for use in later steps.
Step find(size_t slot, size_t address) {
  return {
      "gpumem_memory_get_info", [=](World& w) {
        const gpumem_status status = gpumem_memory_get_info(w.out.memory[slot], &w.out.memory_info, &w.error);
        w.out.address[address] = w.out.memory_info.host_pointer != nullptr ? w.out.memory_info.host_pointer
                                                                           : w.out.memory_info.device_pointer;
        return status;
      }};
}

Step destroy_stream(size_t slot) { return ENDING_CALL(gpumem_stream_destroy, w.out.stream[slot]); }
Step destroy_event(size_t slot) { return ENDING_CALL(gpumem_event_destroy, w.out.event[slot]); }
Step record(size_t event, size_t stream) {
  return DEVICE_CALL(gpumem_event_record, w.out.event[event], w.out.stream[stream]);
}

// ---- copies and fills ----

// Operands by name. The destination is in slot and address 0, the source in 1.
enum class Operand { kPageable, kPinned, kRegistered, kDevice, kOtherDevice };

const char* name_of(Operand operand) {
  switch (operand) {
    case Operand::kPageable:
      return "pageable";
    case Operand::kPinned:
      return "pinned";
    case Operand::kRegistered:
      return "registered";
    case Operand::kDevice:
      return "device";
    default:
      return "other device";
  }
}

std::vector<Step> make_operand(Operand operand, size_t place) {
  switch (operand) {
    case Operand::kPageable:
      return {Step{"gpumem_stats_reset_peaks", [=](World& w) {
                     w.out.address[place] = w.host[1] + place * (kHostBytes / 2);
                     return gpumem_stats_reset_peaks(w.out.instance, &w.error);
                   }}};
    case Operand::kPinned:
      return {create(place, GPUMEM_KIND_PINNED, kSize), find(place, place)};
    case Operand::kRegistered:
      return {create(place, GPUMEM_KIND_REGISTERED, kSize), find(place, place)};
    default:
      return {create(place, GPUMEM_KIND_DEVICE, kSize, 0, 0, 0, operand == Operand::kDevice ? 0 : 1),
              find(place, place)};
  }
}

Step plain_fill(size_t place, uint32_t value) {
  return DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[place], kSize, value, 1);
}

void expect_bytes(World& w, uint64_t begin, uint64_t size, unsigned char value) {
  std::vector<unsigned char> bytes(size);
  ASSERT_EQ(gpumem_copy(w.out.instance, bytes.data(), static_cast<char*>(w.out.address[0]) + begin, size,
                        nullptr, &w.error),
            GPUMEM_SUCCESS)
      << w.error.message;
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), value), static_cast<ptrdiff_t>(size));
}

// `work` on operands, in a stream or without one. Without, the library has made its own stream before, or
// makes it now.
enum class Where { kStream, kOwnStream, kNewStream };

Scenario transfer(const std::string& name, std::vector<Operand> operands, Where where, const Step& work,
                  std::function<void(World&)> verify) {
  Scenario scenario{name, kBoth, {}, {work}};
  for (size_t place = 0; place < operands.size(); ++place) {
    scenario.name += std::string(place == 0 ? " to " : " from ") + name_of(operands[place]);
    for (const Step& step : make_operand(operands[place], place))
      scenario.before.push_back(step);
  }
  switch (where) {
    case Where::kStream:
      scenario.name += ", on a stream";
      scenario.before.push_back(create_stream(0));
      scenario.steps.push_back(synchronize(0));
      // What is left of a stream of the memory's own device that still had work to do.
      if (operands[0] == Operand::kOtherDevice) scenario.idle_streams = 1;
      break;
    case Where::kNewStream:
      scenario.name += ", for the first time";
      scenario.idle_streams = 2;
      break;
    case Where::kOwnStream:
      for (size_t place = 0; place < operands.size(); ++place)
        scenario.before.push_back(plain_fill(place, 7));
      break;
  }
  if (operands.size() == 2) scenario.before.push_back(plain_fill(1, 0x3D));
  scenario.helpless = operands[0] == Operand::kOtherDevice;  // work of two streams
  scenario.verify = std::move(verify);
  return scenario;
}

Step copy_step(bool on_stream, gpumem_source_order order) {
  static gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
  const auto given = [=] {
    options.source_order = order;
    return &options;
  };
  return on_stream
             ? DEVICE_CALL(gpumem_copy_async, w.out.stream[0], w.out.address[0], w.out.address[1], kSize,
                           given())
             : DEVICE_CALL(gpumem_copy, w.out.instance, w.out.address[0], w.out.address[1], kSize, given());
}

// Three boxes, the last of which has three slices. What `out_failed` receives on failure is no output like
// the others, so it is checked here.
Step regions_step(bool on_stream) {
  return {on_stream ? "gpumem_copy_regions_async" : "gpumem_copy_regions",
          [=](World& w) {
            gpumem_copy_region regions[3];
            for (uint64_t i = 0; i < 3; ++i) {
              regions[i] = GPUMEM_COPY_REGION_INIT;
              regions[i].destination.pointer = static_cast<char*>(w.out.address[0]) + i * kPage;
              regions[i].source.pointer = static_cast<char*>(w.out.address[1]) + i * kPage;
              regions[i].width = 100;
              regions[i].height = 4;
            }
            regions[1].destination.row_pitch = 256;
            regions[2].depth = 3;
            regions[2].source.slice_pitch = 512;
            uint64_t failed = 77;
            const gpumem_status status =
                on_stream ? gpumem_copy_regions_async(w.out.stream[0], regions, 3, &failed, &w.error)
                          : gpumem_copy_regions(w.out.instance, regions, 3, &failed, &w.error);
            EXPECT_TRUE(failed == 77 || (GPUMEM_FAILED(status) && failed < 3)) << failed;
            return status;
          },
          GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY};
}

}  // namespace

Step create_stream(size_t slot, uint32_t device) {
  return DEVICE_CALL(gpumem_stream_create, w.out.device[device], nullptr, &w.out.stream[slot]);
}

Step create_event(size_t slot, uint32_t device) {
  return DEVICE_CALL(gpumem_event_create, w.out.device[device], nullptr, &w.out.event[slot]);
}

Step synchronize(size_t slot) {
  return DEVICE_CALL(gpumem_stream_synchronize, w.out.stream[slot], GPUMEM_TIMEOUT_INFINITE);
}

std::vector<Scenario> stream_scenarios() {
  std::vector<Scenario> all;
  all.push_back(
      {"streams", kBoth, {}, {create_stream(0), create_stream(1, 1), destroy_stream(0), destroy_stream(1)}});
  all.push_back({"questions to a stream",
                 kBoth,
                 {create_stream(0)},
                 {CALL(gpumem_stream_get_info, w.out.stream[0], &w.out.stream_info),
                  DEVICE_CALL(gpumem_stream_synchronize, w.out.stream[0], kHour),
                  DEVICE_CALL(gpumem_stream_query, w.out.stream[0]), synchronize(0)}});
  all.push_back(
      {"an adopted stream",
       kCuda,
       {create_stream(0), CALL(gpumem_stream_get_info, w.out.stream[0], &w.out.stream_info)},
       {DEVICE_CALL(gpumem_stream_wrap, w.out.device[0], w.out.stream_info.native_stream, &w.out.stream[1]),
        synchronize(1), destroy_stream(1)}});
  Scenario legacy{"the default stream",
                  kBoth,
                  {},
                  {DEVICE_CALL(gpumem_stream_wrap, w.out.device[0], nullptr, &w.out.stream[0]),
                   synchronize(0), destroy_stream(0)}};
  legacy.idle_streams = 1;
  all.push_back(legacy);

  all.push_back(
      {"events", kBoth, {}, {create_event(0), create_event(1, 1), destroy_event(0), destroy_event(1)}});
  all.push_back(
      {"questions to an event",
       kBoth,
       {create_stream(0), create_event(0), create_event(1)},
       {CALL(gpumem_event_get_info, w.out.event[0], &w.out.event_info), record(0, 0), record(1, 0),
        DEVICE_CALL(gpumem_event_synchronize, w.out.event[1], kHour),
        DEVICE_CALL(gpumem_event_synchronize, w.out.event[0], GPUMEM_TIMEOUT_INFINITE),
        DEVICE_CALL(gpumem_event_query, w.out.event[1]),
        DEVICE_CALL(gpumem_event_get_elapsed_time, w.out.event[0], w.out.event[1], &w.out.nanoseconds)},
       [](World& w) { EXPECT_GE(w.out.nanoseconds, 0); }});
  all.push_back(
      {"an adopted event",
       kCuda,
       {create_event(0), CALL(gpumem_event_get_info, w.out.event[0], &w.out.event_info)},
       {DEVICE_CALL(gpumem_event_wrap, w.out.device[0], w.out.event_info.native_event, 0, &w.out.event[1]),
        destroy_event(1)}});
  Step refused = CALL(gpumem_event_wrap, w.out.device[0], w.host[0], 0, &w.out.event[0]);
  refused.expected = GPUMEM_ERROR_UNSUPPORTED;
  all.push_back({"an event that cannot be adopted", kHost, {}, {refused}});

  const auto host_function = [](size_t stream) {
    return DEVICE_CALL(gpumem_stream_launch_host_function, w.out.stream[stream], count, &counter);
  };
  const auto start_counting = PLAIN_CALL(gpumem_version, (counter = 0) == 0);
  all.push_back({"host functions",
                 kBoth,
                 {create_stream(0), start_counting},
                 {host_function(0), host_function(0), synchronize(0)},
                 [](World&) { EXPECT_EQ(counter, 2); }});
  all.push_back({"streams that wait for one another",
                 kBoth,
                 {create_stream(0), create_stream(1, 1), create_stream(2), create_event(0),
                  create_event(1, 1), start_counting},
                 {host_function(0), record(0, 0),
                  DEVICE_CALL(gpumem_stream_wait_event, w.out.stream[1], w.out.event[0]), host_function(1),
                  record(1, 1), DEVICE_CALL(gpumem_stream_wait_event, w.out.stream[2], w.out.event[1]),
                  host_function(2), synchronize(2), DEVICE_CALL(gpumem_stream_query, w.out.stream[0])},
                 [](World&) { EXPECT_EQ(counter, 3); }});
  const auto write = [](size_t place, uint64_t value, uint32_t size) {
    return DEVICE_CALL(gpumem_stream_write_value, w.out.stream[0], w.out.address[place], value, size);
  };
  const auto wait = [](size_t stream, size_t place, uint64_t value, uint32_t size,
                       gpumem_wait_condition condition) {
    return DEVICE_CALL(gpumem_stream_wait_value, w.out.stream[stream], w.out.address[place], value, size,
                       condition);
  };
  for (const gpumem_kind kind : {GPUMEM_KIND_PINNED, GPUMEM_KIND_DEVICE}) {
    all.push_back({std::string("values in ") + (kind == GPUMEM_KIND_PINNED ? "pinned" : "device") + " memory",
                   kBoth,
                   {create(0, kind, kPage), find(0, 0), create_stream(0), create_stream(1)},
                   {write(0, 5, 4), wait(1, 0, 5, 4, GPUMEM_WAIT_EQ), synchronize(1), write(0, 9, 8),
                    wait(1, 0, 9, 8, GPUMEM_WAIT_GEQ), wait(1, 0, 1, 4, GPUMEM_WAIT_NOR), synchronize(1),
                    synchronize(0)}});
  }
  return all;
}

namespace {

constexpr uint64_t kLarge = 8 * kMiB + 40;

// Ordinary memory that threads of the library copy. They and their memory are there before, or start now.
Scenario large_copy(bool to_device, bool on_stream, bool cold) {
  static std::vector<unsigned char> ours;
  const auto copied = [=](unsigned char value) {
    return [=](World& w) {
      ours.assign(kLarge, value);
      void* const there = w.out.address[0];
      void* const to = to_device ? there : ours.data();
      const void* const from = to_device ? ours.data() : there;
      return on_stream ? gpumem_copy_async(w.out.stream[0], to, from, kLarge, nullptr, &w.error)
                       : gpumem_copy(w.out.instance, to, from, kLarge, nullptr, &w.error);
    };
  };
  const char* const function = on_stream ? "gpumem_copy_async" : "gpumem_copy";
  Scenario scenario{std::string("copy of much ordinary memory ") + (to_device ? "to" : "from") + " a device" +
                        (on_stream ? ", on a stream" : "") + (cold ? ", for the first time" : ""),
                    kCuda,
                    {create(0, GPUMEM_KIND_DEVICE, kLarge), find(0, 0), create_stream(0),
                     DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[0], kLarge, 0x3D, 1)},
                    {{function, copied(0x3D), GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY}, synchronize(0)}};
  // What it makes stays for later copies, and how much that is depends on which threads came in time.
  for (Step& step : scenario.steps)
    step.of_many = true;
  if (!cold) scenario.before.push_back({function, copied(0x11)});
  if (!cold)
    scenario.before.push_back(DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[0], kLarge, 0x3D, 1));
  scenario.verify = [=](World& w) {
    if (to_device) return expect_bytes(w, 0, kLarge, 0x3D);
    EXPECT_EQ(std::count(ours.begin(), ours.end(), 0x3D), static_cast<ptrdiff_t>(kLarge));
  };
  scenario.options = [](gpumem_instance_desc& desc, gpumem_host_options&) { desc.transfer_threads = 3; };
  // Their streams, memory and events.
  scenario.idle_streams = 20;
  scenario.helpless = true;
  scenario.costly = true;
  return scenario;
}

}  // namespace

namespace {

// A file of the program's, made before the faults: only what the library does may fail.
int make_program_file() {
  const int file = memfd_create("file", MFD_CLOEXEC);
  const std::vector<unsigned char> bytes(kLarge, 0x3D);
  EXPECT_EQ(pwrite(file, bytes.data(), kLarge, 0), static_cast<ssize_t>(kLarge));
  return file;
}
constinit int program_file = -1;

gpumem_status copy_file(World& w, bool to_memory, uint64_t size, int file) {
  gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
  desc.file_descriptor = file;
  desc.direction = to_memory ? GPUMEM_FILE_DIRECTION_TO_MEMORY : GPUMEM_FILE_DIRECTION_FROM_MEMORY;
  desc.pointer = w.out.address[0];
  desc.size = size;
  gpumem_copy_file_info info = GPUMEM_COPY_FILE_INFO_INIT;
  const gpumem_status status = gpumem_copy_file(w.out.instance, &desc, &info, &w.error);
  EXPECT_TRUE(GPUMEM_FAILED(status) ? info.copied < size : info.copied == size) << info.copied;
  return status;
}

Scenario file_copy(bool to_memory, gpumem_kind kind, uint64_t size, bool cold) {
  Scenario scenario{
      std::string("copy ") + (to_memory ? "of a file to " : "to a file from ") +
          (kind == GPUMEM_KIND_DEVICE ? "device" : "pinned") + " memory" + (size == kLarge ? ", large" : "") +
          (cold ? ", for the first time" : ""),
      cold ? kCuda : kBoth,  // what is page-locked for later copies counts on the host backend

      {create(0, kind, size), find(0, 0),
       DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[0], size, 0x3D, 1)},
      {{"gpumem_copy_file", [=](World& w) { return copy_file(w, to_memory, size, program_file); },
        GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY}}};
  scenario.steps[0].of_many = true;
  if (!cold) {
    scenario.before.push_back(
        {"gpumem_copy_file", [=](World& w) { return copy_file(w, true, size, program_file); }});
  }
  scenario.verify = [=](World& w) { expect_bytes(w, 0, size, 0x3D); };
  scenario.options = [](gpumem_instance_desc& desc, gpumem_host_options&) { desc.transfer_threads = 3; };
  if (size == kLarge) scenario.idle_locked = 3 * 2 * 2048;  // two slots of 2 MiB for each thread
  scenario.idle_streams = 20;
  scenario.helpless = true;
  scenario.costly = size == kLarge;
  return scenario;
}

}  // namespace

std::vector<Scenario> copy_scenarios() {
  std::vector<Scenario> all;
  program_file = make_program_file();
  for (const bool to_memory : {true, false}) {
    for (const gpumem_kind kind : {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED})
      all.push_back(file_copy(to_memory, kind, kSize, false));
    all.push_back(file_copy(to_memory, GPUMEM_KIND_DEVICE, kLarge, false));
    all.push_back(file_copy(to_memory, GPUMEM_KIND_DEVICE, kLarge, true));
  }
  for (const bool to_device : {true, false}) {
    for (const bool on_stream : {true, false})
      all.push_back(large_copy(to_device, on_stream, false));
    all.push_back(large_copy(to_device, false, true));
  }
  const auto copied = [](World& w) { expect_bytes(w, 0, kSize, 0x3D); };
  using enum Operand;
  for (const Where where : {Where::kStream, Where::kOwnStream, Where::kNewStream}) {
    const bool on_stream = where == Where::kStream;
    const Step plain = copy_step(on_stream, GPUMEM_SOURCE_ORDER_STREAM);
    for (const auto& [to, from] :
         {std::pair{kDevice, kPageable}, std::pair{kPageable, kDevice}, std::pair{kDevice, kPinned},
          std::pair{kRegistered, kDevice}, std::pair{kOtherDevice, kDevice}, std::pair{kPageable, kPinned}}) {
      if (where == Where::kNewStream && to != kDevice) continue;
      all.push_back(transfer("copy", {to, from}, where, plain, copied));
    }
    if (where == Where::kNewStream) continue;
    all.push_back(transfer("copy during the call", {kDevice, kPageable}, where,
                           copy_step(on_stream, GPUMEM_SOURCE_ORDER_DURING_CALL), copied));
    all.push_back(transfer("copy during the call", {kPinned, kDevice}, where,
                           copy_step(on_stream, GPUMEM_SOURCE_ORDER_DURING_CALL), copied));
    const Step rectangle = on_stream ? DEVICE_CALL(gpumem_copy_2d_async, w.out.stream[0], w.out.address[0],
                                                   512, w.out.address[1], 256, 200, 10, nullptr)
                                     : DEVICE_CALL(gpumem_copy_2d, w.out.instance, w.out.address[0], 512,
                                                   w.out.address[1], 256, 200, 10, nullptr);
    const auto rows = [](World& w) {
      for (uint64_t row = 0; row < 10; ++row)
        expect_bytes(w, row * 512, 200, 0x3D);
    };
    all.push_back(transfer("copy of a rectangle", {kDevice, kPageable}, where, rectangle, rows));
    all.push_back(transfer("copy of a rectangle", {kRegistered, kDevice}, where, rectangle, rows));
    const auto boxes = [](World& w) {
      expect_bytes(w, 0, 400, 0x3D);
      for (uint64_t row = 0; row < 4; ++row)
        expect_bytes(w, kPage + row * 256, 100, 0x3D);
      expect_bytes(w, 2 * kPage, 1200, 0x3D);
    };
    all.push_back(transfer("copy of boxes", {kDevice, kPageable}, where, regions_step(on_stream), boxes));
    all.push_back(transfer("copy of boxes", {kPinned, kDevice}, where, regions_step(on_stream), boxes));
    const Step fill =
        on_stream ? DEVICE_CALL(gpumem_fill_async, w.out.stream[0], w.out.address[0], kSize, 0x5C5C5C5C, 4)
                  : DEVICE_CALL(gpumem_fill, w.out.instance, w.out.address[0], kSize, 0x5C5C5C5C, 4);
    for (const Operand to : {kPageable, kPinned, kRegistered, kDevice, kOtherDevice}) {
      all.push_back(transfer("fill", {to}, where, fill, [](World& w) { expect_bytes(w, 0, kSize, 0x5C); }));
    }
    const Step fill_rectangle =
        on_stream
            ? DEVICE_CALL(gpumem_fill_2d_async, w.out.stream[0], w.out.address[0], 512, 200, 10, 0x5C5C, 2)
            : DEVICE_CALL(gpumem_fill_2d, w.out.instance, w.out.address[0], 512, 200, 10, 0x5C5C, 2);
    for (const Operand to : {kPageable, kDevice}) {
      all.push_back(transfer("fill of a rectangle", {to}, where, fill_rectangle, [](World& w) {
        for (uint64_t row = 0; row < 10; ++row)
          expect_bytes(w, row * 512, 200, 0x5C);
      }));
    }
  }
  return all;
}

}  // namespace faults
