// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// C++20 with gpumem.hpp: owners, spans, errors and callbacks. See docs/cpp.md.
#include <gpumem/gpumem.hpp>
#include <gpumem/mr.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory_resource>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

gpumem::Instance open() { return gpumem::open_instance({.backend = GPUMEM_BACKEND_ANY, .name = "example"}); }

gpumem::Memory allocate(gpumem::Device device, uint64_t size, const char* name) {
  gpumem::MemoryDesc desc;  // the form for C++17
  desc.kind = GPUMEM_KIND_DEVICE;
  desc.size = size;
  desc.name = name;
  return device.create_memory(desc);
}

bool round_trip(gpumem::Device device) {
  constexpr size_t kCount = 1024;
  // Destroyed in the reverse order: the stream waits for its work, then the memory goes.
  const gpumem::Memory memory = allocate(device, kCount * sizeof(float), "table");
  const gpumem::Memory staging =
      device.create_memory({.kind = GPUMEM_KIND_PINNED, .size = kCount * sizeof(float)});
  const gpumem::Stream stream = device.create_stream();

  const auto table = memory.device_elements<float>();
  const auto numbers = staging.elements<float>();
  std::iota(numbers.begin(), numbers.end(), 0.0F);
  stream.copy(table, numbers);
  stream.fill(table.last(1), -1.0F);
  std::vector<float> back(kCount);
  stream.copy(back, table);
  stream.synchronize();
  return std::equal(back.begin(), back.end() - 1, numbers.begin()) && back.back() == -1.0F;
}

bool too_much(gpumem::Device device) {
  constexpr uint64_t kPebibyte = uint64_t{1} << 50;
  try {
    const gpumem::Memory memory = allocate(device, kPebibyte, "far too much");
    return false;
  } catch (const gpumem::Error& problem) {
    if (problem.status() != GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY) throw;
    std::cout << "expected: " << problem.name() << ": " << problem.what() << '\n';
  }

  gpumem::Error error;  // one for any number of calls
  const gpumem::Memory memory = device.create_memory({.kind = GPUMEM_KIND_DEVICE, .size = kPebibyte}, error);
  if (!error) return false;
  return !memory && error.status() == GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY;
}

bool timing(gpumem::Device device) {
  const gpumem::Event start = device.create_event();
  const gpumem::Event end = device.create_event();
  const gpumem::Stream stream = device.create_stream();
  start.record(stream);
  end.record(stream);
  while (!end.synchronize(1'000'000)) {
    std::cout << "another millisecond\n";
  }
  const std::optional<int64_t> nanoseconds = start.elapsed_time(end);
  return nanoseconds && *nanoseconds >= 0;
}

// What was made from the memory of a buffer, such as a registration with a network card.
struct Derived {
  bool before_sleep(gpumem::BufferRef /*buffer*/) {
    valid = false;
    return true;
  }
  void after_wake(gpumem::BufferRef /*buffer*/, uint64_t now) {
    valid = true;
    generation = now;
  }

  bool valid = true;
  uint64_t generation = 0;
};

bool sleep_and_wake(const gpumem::Instance& instance, gpumem::Device device) {
  Derived derived;  // destroyed last: the buffer has its address
  const gpumem::Group model = instance.create_group({.name = "model"});
  const gpumem::Buffer weights =
      device.create_buffer({.size = uint64_t{4} << 20, .group = model, .tag = "weights"});
  weights.set_callbacks(derived);
  instance.fill(weights.device_elements<int>(), 7);

  const gpumem::SleepDesc desc{.content = GPUMEM_CONTENT_PAGEABLE};
  try {
    model.sleep(desc, [](uint64_t, uint64_t) -> bool { throw std::runtime_error("no time for this"); });
  } catch (const std::runtime_error& problem) {
    std::cout << "awake: " << problem.what() << '\n';
  }
  if (weights.info().state != GPUMEM_BUFFER_STATE_AWAKE || !derived.valid) return false;

  uint64_t copied = 0;
  model.sleep(desc, [&copied](uint64_t done, uint64_t /*total*/) { copied = done; });
  if (copied != weights.info().size || derived.valid) return false;
  model.wake();

  int last = 0;
  instance.copy(std::span(&last, 1), weights.device_elements<int>().last(1));
  return last == 7 && derived.valid && derived.generation == weights.info().generation;
}

bool tile(const gpumem::Instance& instance, gpumem::Device device) {
  constexpr size_t kWidth = 64, kHeight = 48, kTile = 8;
  std::vector<uint8_t> image(kWidth * kHeight);
  std::iota(image.begin(), image.end(), uint8_t{0});
  const gpumem::Memory memory =
      device.create_memory({.kind = GPUMEM_KIND_DEVICE, .size = kTile * kTile + kWidth});

  gpumem::CopyRegion regions[2];
  regions[0].source.pointer = &image[5 * kWidth + 10];  // row 5, column 10
  regions[0].source.row_pitch = kWidth;
  regions[0].destination.memory = memory.get();
  regions[0].width = regions[0].height = kTile;
  regions[1].source.pointer = image.data();  // a row, behind the tile
  regions[1].destination.memory = memory.get();
  regions[1].destination.offset = kTile * kTile;
  regions[1].width = kWidth;
  uint64_t failed = 0;
  gpumem::Error error;
  instance.copy_regions(regions, &failed, error);
  if (error) {
    std::cerr << "region " << failed << ": " << error.what() << '\n';
    return false;
  }
  std::vector<uint8_t> found(kTile * kTile + kWidth);
  instance.copy(found, memory.device_elements<uint8_t>());
  return found[kTile] == image[6 * kWidth + 10] && found.back() == image[kWidth - 1];
}

bool in_turns(const gpumem::Instance& instance, gpumem::Device device) {
  const gpumem::Memory memory = device.create_memory({.kind = GPUMEM_KIND_MANAGED, .size = 3 * sizeof(int)});
  const gpumem::Stream stream = device.create_stream();
  stream.fill(memory.device_elements<int>(), 7);
  stream.synchronize();
  const auto numbers = memory.elements<int>();
  const gpumem::HostAccess turn = instance.host_access(numbers.data());
  numbers[0] += 1;
  return numbers[0] == 8 && numbers[2] == 7;  // and then devices may use it again
}

bool there_and_back(const gpumem::Instance& instance, gpumem::Device device) {
  std::FILE* const file = std::tmpfile();
  if (file == nullptr) return false;
  constexpr size_t kSize = size_t{1} << 20;
  const gpumem::Memory weights = device.create_memory({.kind = GPUMEM_KIND_DEVICE, .size = kSize});
  const auto bytes = weights.device_elements<uint8_t>();
  instance.fill(bytes, uint8_t{7});
  gpumem::CopyFileDesc desc{.file_descriptor = fileno(file),
                            .direction = GPUMEM_FILE_DIRECTION_FROM_MEMORY,
                            .pointer = bytes.data(),
                            .size = kSize};
  instance.copy_file(desc);
  instance.fill(bytes, uint8_t{0});

  desc.direction = GPUMEM_FILE_DIRECTION_TO_MEMORY;
  gpumem_copy_file_info info = GPUMEM_COPY_FILE_INFO_INIT;
  gpumem::Error error;
  const auto stop = [](uint64_t, uint64_t) { return false; };
  instance.copy_file(desc, stop, &info, error);
  if (error.status() != GPUMEM_ERROR_CANCELLED) return false;
  // The other bytes.
  desc.file_offset += info.copied;
  desc.pointer = bytes.subspan(info.copied).data();
  desc.size -= info.copied;
  if (desc.size != 0) instance.copy_file(desc);

  std::fclose(file);
  std::vector<uint8_t> back(kSize);
  instance.copy(back, bytes);
  return std::count(back.begin(), back.end(), 7) == kSize;
}

// In the process that makes the batches.
bool produce(const gpumem::Instance& instance, const gpumem::Ring& ring) {
  for (const int batch : {1, 2, 3}) {
    const gpumem_ring_slot slot = ring.acquire().value();
    instance.fill(gpumem::device_span<int>(static_cast<int*>(slot.pointer), slot.size / sizeof(int)), batch);
    ring.publish(nullptr, slot.size, 0);
  }
  return ring.finish();
}

// In each that uses them, with what export_handle() of the ring returned.
void consume(const gpumem::Instance& instance, const gpumem_share_handle& handle) {
  const gpumem::Ring ring = instance.open_ring(handle);
  gpumem::Error error;
  while (const std::optional<gpumem_ring_slot> slot = ring.wait(nullptr, GPUMEM_TIMEOUT_INFINITE, error)) {
    std::vector<std::byte> batch(slot->size);
    instance.copy(batch.data(), slot->pointer, slot->size);
    ring.release(nullptr, slot->number);
  }
  if (error.status() != GPUMEM_ERROR_CLOSED) throw error;  // else the producer has finished
}

bool counters(const gpumem::Instance& instance, gpumem::Device device) {
  const uint64_t before = instance.stats().live_bytes;
  const gpumem::Memory memory = allocate(device, 4096, "counted");
  const gpumem_kind_stats kind = instance.kind_stats(GPUMEM_KIND_DEVICE);
  std::cout << instance.report() << '\n';  // a line for each live object
  return instance.stats().live_bytes == before + 4096 && kind.peak_bytes >= kind.live_bytes;
}

bool pooled(gpumem::Device device) {
  const gpumem::Pool pool = device.create_pool({.limit = uint64_t{64} << 20});
  const gpumem::Stream stream = device.create_stream();
  // Destroyed in the reverse order: the block, its stream, the pool.
  const gpumem::Block<float> block = pool.alloc_elements<float>(1000, stream);
  stream.fill(block.device_elements(), 1.0F);
  return pool.info().live_count == 1;
}

bool contained(gpumem::Device device) {
  const gpumem::Pool pool = device.create_pool({.kind = GPUMEM_KIND_PINNED});
  gpumem::mr::PmrResource resource(pool);
  // Destroyed in the reverse order: what is in the memory, the resource, the pool.
  const std::pmr::vector<float> numbers(1000, 1.0F, &resource);
  return pool.info().live_count == 1 && numbers.back() == 1.0F;
}

bool staged(gpumem::Device device) {
  const gpumem::Pool pool = device.create_pool({.kind = GPUMEM_KIND_PINNED});
  std::vector<float, gpumem::mr::Allocator<float>> numbers(gpumem::mr::Allocator<float>{pool});
  for (const float number : {1.0F, 2.0F, 3.0F}) {
    numbers.push_back(number);
  }
  const gpumem::Memory memory = allocate(device, numbers.size() * sizeof(float), "numbers");
  const gpumem::Stream stream = device.create_stream();
  stream.copy(memory.device_elements<float>(), numbers);
  stream.fill(memory.device_elements<float>().first(1), 7.0F);
  stream.copy(numbers, memory.device_elements<float>());
  stream.synchronize();
  return pool.info().live_count == 1 && numbers.front() == 7.0F && numbers.back() == 3.0F;
}

bool follow(const gpumem::Instance& publisher, gpumem::Device device) {
  const std::string path = "@gpumem-example-cpp-" + std::to_string(getpid());
  std::vector<gpumem::Buffer> versions;
  const gpumem::Hub hub = publisher.open_hub({.path = path.c_str()});

  // The reader, which is another process, usually.
  const gpumem::Instance instance = open();
  const gpumem::Link link = instance.connect_link({.path = path.c_str()});
  gpumem::ImportedEntry model;
  for (const int content : {1, 2, 3}) {
    const gpumem::Buffer& version = versions.emplace_back(
        device.create_buffer({.size = sizeof content, .handle_types = GPUMEM_HANDLE_TYPE_POSIX_FD}));
    publisher.fill(version.device_elements<int>(), content);
    hub.publish("model", publisher.export_memory(version.info().base));

    // The new version is used from here on, and the import of the old one ends.
    model = link.import_next("model", model.entry.version).value();
    int found = 0;
    instance.copy(&found, model.pointer, sizeof found);
    if (found != content) return false;
  }
  // None comes within a millisecond.
  return !link.import_next("model", model.entry.version, 1'000'000);
}

int main() {
  try {
    gpumem::Instance instance = open();  // before everything else
    const gpumem::Device device = instance.device(0);
    if (!round_trip(device) || !too_much(device) || !timing(device) || !sleep_and_wake(instance, device) ||
        !tile(instance, device) || !in_turns(instance, device) || !there_and_back(instance, device) ||
        !produce(instance, device.create_ring({.slot_size = 4096})) || !counters(instance, device) ||
        !pooled(device) || !contained(device) || !staged(device) || !follow(instance, device)) {
      std::cerr << "something is not as this page says\n";
      return 1;
    }
    instance.close();  // fails if something was forgotten
    std::cout << "all is well\n";
    return 0;
  } catch (const gpumem::Error& problem) {
    std::cerr << problem.function() << ": " << problem.what() << '\n';
    return 1;
  }
}
