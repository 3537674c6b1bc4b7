// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Several threads on one instance. Some objects are doomed: any thread may destroy them, so that a call with
// one either does its work or gets STALE_HANDLE, and exactly one destroy succeeds. Every other object stays,
// and the bytes of each memory belong to one thread, so that what it holds is certain.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "player.h"

namespace sequences {
namespace {

constexpr gpumem_status kStale = GPUMEM_ERROR_STALE_HANDLE;
constexpr gpumem_status kInvalid = GPUMEM_ERROR_INVALID_ARGUMENT;
constexpr uint64_t kMostBytes = 8192;
constexpr size_t kBatchMost = 3;

// An object that the threads share.
struct Shared {
  uint64_t handle;
  int index;  // in the model
  int device;
  bool doomed;
  std::atomic<uint32_t>* destroyed;  // successful destroys
};

struct Stage {
  gpumem_instance instance = nullptr;
  std::vector<gpumem_device> devices;
  std::vector<Shared> memories;
  std::vector<Shared> streams;
  std::vector<Shared> events;
  std::vector<Shared> pools;
  std::deque<std::atomic<uint32_t>> destroyed;
  bool anything_stays = false;

  // Blocks of the pools, for whoever comes first: one thread frees what another has allocated.
  struct Block {
    const Shared* pool;
    uint8_t* pointer;
    uint64_t size;
    uint8_t value;
    const Shared* stream;  // that writes it; null: it is written
  };
  std::mutex mutex;
  std::vector<Block> blocks;
};

}  // namespace

// One thread with its steps.
class Crew {
 public:
  Crew(Player& player, Stage& stage, uint32_t number, uint32_t threads)
      : player_(player), stage_(stage), number_(number), threads_(threads) {}

  // Frees what is left when all have ended.
  void give_rest(const Stage::Block& block) {
    try {
      look_at(block);
      give_block(block, block.stream);
    } catch (const Player::Failed& failed) {
      if (problem_.empty()) problem_ = failed.what;
    }
  }
  void run(const std::vector<Step>& steps) {
    try {
      for (const Step& step : steps)
        play(step);
      give_back();
    } catch (const Player::Failed& failed) {
      problem_ = failed.what;
    }
  }

  const std::string& problem() const { return problem_; }
  const std::vector<std::string>& trace() const { return trace_; }
  const Coverage& coverage() const { return coverage_; }
  // What it made, by kind.
  uint64_t made(gpumem_kind kind) const {
    const auto found = made_.find(kind);
    return found == made_.end() ? 0 : found->second;
  }
  // Blocks that it has allocated, by the pool's index.
  const std::map<int, uint64_t>& taken() const { return taken_; }

 private:
  gpumem_status check(const char* function, const std::string& text, const Expect& expect,
                      gpumem_status got) {
    coverage_.count(function, got >= 0);
    if (player_.tracing_) {
      trace_.push_back("[" + std::to_string(number_) + "] " + function + "(" + text +
                       ") = " + gpumem_status_name(got));
    }
    if (std::find(expect.begin(), expect.end(), got) == expect.end()) {
      player_.fail(std::string(function) + ": on a thread: expected " + text_of(expect) + ", got " +
                   gpumem_status_name(got));
    }
    return got;
  }

  // What a call with these objects may answer besides what it may answer anyway.
  static Expect with(Expect expect, std::initializer_list<const Shared*> used) {
    for (const Shared* each : used)
      if (each->doomed && std::count(expect.begin(), expect.end(), kStale) == 0) expect.push_back(kStale);
    return expect;
  }
  static Expect taking(const Shared& from) {
    return with({GPUMEM_SUCCESS, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, GPUMEM_ERROR_LIMIT_EXCEEDED}, {&from});
  }
  static std::string text(const char* noun, const Shared& shared) {
    return noun + std::to_string(shared.index) + (shared.doomed ? " (doomed)" : "");
  }
  static const Shared* pick(Choice& choice, const std::vector<Shared>& list) {
    const uint8_t byte = choice.byte();
    return list.empty() ? nullptr : &list[byte % list.size()];
  }
  // A stream that stays, for work on bytes.
  const Shared* pick_lasting(Choice& choice) const {
    std::vector<const Shared*> lasting;
    for (const Shared& each : stage_.streams)
      if (!each.doomed) lasting.push_back(&each);
    const uint8_t byte = choice.byte();
    return lasting.empty() || byte % 4 == 0 ? nullptr : lasting[byte % lasting.size()];
  }
  // A memory whose bytes are this thread's.
  const Shared* pick_bytes(Choice& choice) const {
    std::vector<const Shared*> own;
    for (const Shared& each : stage_.memories) {
      const Memory& memory = player_.memory(each.index);
      const bool mine = static_cast<uint32_t>(each.index) % threads_ == number_;
      if (mine && !each.doomed && memory.kind != GPUMEM_KIND_REGISTERED) own.push_back(&each);
    }
    const uint8_t byte = choice.byte();
    return own.empty() ? nullptr : own[byte % own.size()];
  }

  // Before other work, or none, uses a memory: the work of the former stream is waited for.
  void order(int index, gpumem_stream next) {
    gpumem_stream& pending = pending_[index];
    if (pending != nullptr && pending != next) {
      check("gpumem_stream_synchronize", "to order the next", {GPUMEM_SUCCESS},
            gpumem_stream_synchronize(pending, GPUMEM_TIMEOUT_INFINITE, nullptr));
    }
    pending = next;
  }

  void play(const Step& step);
  void destroy(const char* function, const char* noun, const Shared& shared,
               const std::function<gpumem_status()>& call) {
    if (!shared.doomed) return;
    if (check(function, text(noun, shared), {GPUMEM_SUCCESS, kStale}, call()) == GPUMEM_SUCCESS) {
      ++*shared.destroyed;
    }
  }
  void create(Choice& choice);
  const Shared* pick_pool_and_stream(Choice& choice, const Shared*& in);
  void take_block(Choice& choice);
  void try_block(Choice& choice);
  void take_batch(Choice& choice);
  void write_block(const Shared& from, const Shared* in, void* made, uint64_t size, uint8_t value);
  // One of those in the list; of a certain pool, if that is not null. Needs the lock.
  std::optional<Stage::Block> take_out(uint8_t number, const Shared* of);
  void give_block(Choice& choice);
  void give_batch(Choice& choice);
  void give_block(const Stage::Block& block, const Shared* in);
  void look_at(const Stage::Block& block);
  void ask_pool(Kind kind, const Shared& pool, Choice& choice);
  void data(Choice& choice, bool copies);
  void check_data(Choice& choice);
  void upload(Choice& choice);
  void register_pages(Choice& choice);
  void open_another();

  void give_back() {
    for (auto& [index, pending] : pending_) {
      if (pending != nullptr) order(index, nullptr);
    }
    for (const gpumem_memory memory : own_) {
      check("gpumem_memory_destroy", "own", {GPUMEM_SUCCESS}, gpumem_memory_destroy(memory, nullptr));
    }
    if (registered_ != nullptr) {
      check("gpumem_unregister", "own", {GPUMEM_SUCCESS},
            gpumem_unregister(stage_.instance, registered_, nullptr));
    }
  }

  Player& player_;
  Stage& stage_;
  const uint32_t number_;
  const uint32_t threads_;
  std::string problem_;
  std::vector<std::string> trace_;
  Coverage coverage_;
  std::map<int, gpumem_stream> pending_;  // by memory
  std::vector<gpumem_memory> own_;
  uint8_t* registered_ = nullptr;
  std::map<gpumem_kind, uint64_t> made_;
  std::map<int, uint64_t> taken_;
};

void Crew::create(Choice& choice) {
  const gpumem_device home = stage_.devices[choice.byte() % stage_.devices.size()];
  gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
  const uint8_t byte = choice.byte();
  constexpr gpumem_kind kKinds[] = {GPUMEM_KIND_DEVICE, GPUMEM_KIND_PINNED, GPUMEM_KIND_MANAGED};
  desc.kind = kKinds[byte % std::size(kKinds)];
  desc.size = byte < kWrong ? 1 + byte * kMostBytes / kWrong : 0;
  gpumem_memory made = nullptr;
  const Expect expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_OUT_OF_DEVICE_MEMORY, GPUMEM_ERROR_LIMIT_EXCEEDED};
  const gpumem_status status = check(
      "gpumem_memory_create", "kind " + std::to_string(desc.kind) + ", size " + std::to_string(desc.size),
      desc.size == 0 ? Expect{kInvalid} : expect, gpumem_memory_create(home, &desc, &made, nullptr));
  if (status != GPUMEM_SUCCESS) return;
  own_.push_back(made);
  ++made_[desc.kind];
}

void Crew::data(Choice& choice, bool copies) {
  const Shared* to = pick_bytes(choice);
  const Shared* from = pick_bytes(choice);
  const Shared* in = pick_lasting(choice);
  if (to == nullptr || from == nullptr) return;
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  const Memory& target = player_.memory(to->index);
  const Memory& source = player_.memory(from->index);
  const uint64_t size = std::min<uint64_t>({target.size, source.size, 1 + choice.byte() * uint64_t{4}});
  if (copies && to == from) return;
  order(to->index, stream);
  Region& written = player_.region(target.region);
  if (!copies) {
    const uint8_t value = choice.byte();
    check(stream != nullptr ? "gpumem_fill_async" : "gpumem_fill",
          text("memory", *to) + ", " + std::to_string(size), {GPUMEM_SUCCESS},
          stream != nullptr ? gpumem_fill_async(stream, target.address, size, value, 1, nullptr)
                            : gpumem_fill(stage_.instance, target.address, size, value, 1, nullptr));
    for (uint64_t i = 0; i < size; ++i) {
      written.bytes[i] = value;
      written.known[i] = true;
    }
    return;
  }
  order(from->index, stream);
  check(stream != nullptr ? "gpumem_copy_async" : "gpumem_copy",
        text("memory", *to) + ", " + text("memory", *from) + ", " + std::to_string(size), {GPUMEM_SUCCESS},
        stream != nullptr
            ? gpumem_copy_async(stream, target.address, source.address, size, nullptr, nullptr)
            : gpumem_copy(stage_.instance, target.address, source.address, size, nullptr, nullptr));
  const Region& read = player_.region(source.region);
  for (uint64_t i = 0; i < size; ++i) {
    written.bytes[i] = read.bytes[i];
    written.known[i] = read.known[i];
  }
}

void Crew::check_data(Choice& choice) {
  const Shared* chosen = pick_bytes(choice);
  if (chosen == nullptr) return;
  const Memory& memory = player_.memory(chosen->index);
  order(chosen->index, nullptr);
  std::vector<uint8_t> bytes(memory.size);
  check("gpumem_copy", "to look at " + text("memory", *chosen), {GPUMEM_SUCCESS},
        gpumem_copy(stage_.instance, bytes.data(), memory.address, memory.size, nullptr, nullptr));
  const Region& expected = player_.region(memory.region);
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != expected.bytes[i] && expected.known[i]) {
      player_.fail("byte " + std::to_string(i) + " of memory is " + std::to_string(bytes[i]) + "; expected " +
                   std::to_string(expected.bytes[i]));
    }
  }
}

// All of a large memory, from ordinary memory or a file: threads of the library copy for several callers.
void Crew::upload(Choice& choice) {
  const Shared* const to = pick_bytes(choice);
  const Shared* in = pick_lasting(choice);
  const uint8_t value = choice.byte();
  const bool from_file = choice.byte() % 3 == 2;
  if (to == nullptr) return;
  const Memory& memory = player_.memory(to->index);
  if (memory.size < Model::kLeastOfThreads) return;
  Region& written = player_.region(memory.region);
  constexpr uint64_t kStripe = 4096;
  std::vector<uint8_t> bytes(memory.size);
  for (uint64_t at = 0; at < bytes.size(); at += kStripe)
    std::memset(&bytes[at], static_cast<uint8_t>(value + at / kStripe), std::min(kStripe, bytes.size() - at));
  if (from_file) in = nullptr;
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  order(to->index, stream);
  if (from_file) {
    const int file = memfd_create("a thread's", MFD_CLOEXEC);
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.file_descriptor = file;
    desc.pointer = memory.address;
    desc.size = bytes.size();
    player_.require(pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
                    "a file cannot be written");
    const gpumem_status status = gpumem_copy_file(stage_.instance, &desc, nullptr, nullptr);
    close(file);
    check("gpumem_copy_file", text("memory", *to), {GPUMEM_SUCCESS}, status);
  } else {
    gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
    options.source_order = GPUMEM_SOURCE_ORDER_DURING_CALL;
    check(stream != nullptr ? "gpumem_copy_async" : "gpumem_copy", text("memory", *to) + ", ordinary memory",
          {GPUMEM_SUCCESS},
          stream != nullptr
              ? gpumem_copy_async(stream, memory.address, bytes.data(), bytes.size(), &options, nullptr)
              : gpumem_copy(stage_.instance, memory.address, bytes.data(), bytes.size(), nullptr, nullptr));
  }
  written.bytes = std::move(bytes);
  std::fill(written.known.begin(), written.known.end(), uint8_t{1});
}

const Shared* Crew::pick_pool_and_stream(Choice& choice, const Shared*& in) {
  const Shared* const from = pick(choice, stage_.pools);
  in = pick_lasting(choice);
  // Other devices cannot write to it.
  if (from != nullptr && in != nullptr && in->device != from->device) in = nullptr;
  return from;
}

void Crew::take_block(Choice& choice) {
  const Shared* in = nullptr;
  const Shared* const from = pick_pool_and_stream(choice, in);
  const uint64_t size = 1 + choice.byte() * kMostBytes / UINT8_MAX;
  const uint8_t value = choice.byte();
  constexpr uint64_t kAlignments[] = {0, 0, 0, 4096};
  const uint64_t alignment = choice.one_of(kAlignments);
  if (from == nullptr) return;
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  void* made = nullptr;
  const auto handle = as<gpumem_pool>(from->handle);
  const gpumem_status status =
      check(alignment == 0 ? "gpumem_pool_alloc" : "gpumem_pool_alloc_aligned",
            text("pool", *from) + ", " + std::to_string(size), taking(*from),
            alignment == 0 ? gpumem_pool_alloc(handle, size, stream, &made, nullptr)
                           : gpumem_pool_alloc_aligned(handle, size, alignment, stream, &made, nullptr));
  if (status == GPUMEM_SUCCESS) write_block(*from, in, made, size, value);
}

// What the attempt says depends on what the others do meanwhile, but must agree with the status.
void Crew::try_block(Choice& choice) {
  const Shared* in = nullptr;
  const Shared* const from = pick_pool_and_stream(choice, in);
  const uint64_t size = 1 + choice.byte() * kMostBytes / UINT8_MAX;
  const uint8_t value = choice.byte();
  if (from == nullptr) return;
  void* made = this;
  gpumem_pool_attempt attempt = GPUMEM_POOL_ATTEMPT_INIT;
  const gpumem_status status =
      check("gpumem_pool_try_alloc", text("pool", *from) + ", " + std::to_string(size),
            with({GPUMEM_SUCCESS, GPUMEM_NOT_READY}, {from}),
            gpumem_pool_try_alloc(as<gpumem_pool>(from->handle), size, 0,
                                  in == nullptr ? nullptr : as<gpumem_stream>(in->handle), &made, &attempt,
                                  nullptr));
  const gpumem_pool_answer answer = attempt.answer;
  player_.require(status == GPUMEM_SUCCESS ? answer == GPUMEM_POOL_ANSWER_ALLOCATED
                  : status == GPUMEM_NOT_READY
                      ? answer >= GPUMEM_POOL_ANSWER_BUSY && answer <= GPUMEM_POOL_ANSWER_OVER_LIMIT
                      : answer == 0,
                  "an attempt says something else than the status");
  player_.require(answer == GPUMEM_POOL_ANSWER_NEEDS_WAIT || attempt.stream_id == 0,
                  "an attempt names a stream that nobody waits for");
  player_.require(status == GPUMEM_SUCCESS || made == this, "an attempt that gave nothing has written");
  if (status == GPUMEM_SUCCESS) write_block(*from, in, made, size, value);
}

void Crew::take_batch(Choice& choice) {
  const Shared* in = nullptr;
  const Shared* const from = pick_pool_and_stream(choice, in);
  std::array<uint64_t, kBatchMost> sizes{};
  for (uint64_t& size : sizes)
    size = 1 + choice.byte() * kMostBytes / UINT8_MAX;
  const uint8_t value = choice.byte();
  const size_t count = 1 + choice.byte() % kBatchMost;
  if (from == nullptr) return;
  std::array<void*, kBatchMost> made{};
  made.fill(this);
  const gpumem_status status = check(
      "gpumem_pool_alloc_batch", text("pool", *from) + ", " + std::to_string(count), taking(*from),
      gpumem_pool_alloc_batch(as<gpumem_pool>(from->handle), sizes.data(), count,
                              in == nullptr ? nullptr : as<gpumem_stream>(in->handle), made.data(), nullptr));
  const auto untouched = static_cast<size_t>(std::count(made.begin(), made.end(), this));
  player_.require(untouched == (status == GPUMEM_SUCCESS ? kBatchMost - count : kBatchMost),
                  "a batch has not written what it says");
  if (status != GPUMEM_SUCCESS) return;
  for (size_t i = 0; i < count; ++i)
    write_block(*from, in, made.at(i), sizes.at(i), static_cast<uint8_t>(value + i));
}

// A block that everybody may free. It is written in its stream, or at once.
void Crew::write_block(const Shared& from, const Shared* in, void* made, uint64_t size, uint8_t value) {
  ++taken_[from.index];
  const Pool& known = player_.pool(from.index);
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  Stage::Block block{&from, static_cast<uint8_t*>(made), size, value, in};
  if (in != nullptr && known.kind != GPUMEM_KIND_PAGEABLE) {
    check("gpumem_fill_async", "a block", {GPUMEM_SUCCESS},
          gpumem_fill_async(stream, made, size, value, 1, nullptr));
  } else {
    // What the stream still does may be with these bytes.
    if (in != nullptr) {
      check("gpumem_stream_synchronize", "before a block", {GPUMEM_SUCCESS},
            gpumem_stream_synchronize(stream, GPUMEM_TIMEOUT_INFINITE, nullptr));
    }
    block.stream = nullptr;
    if (known.on_host()) {
      std::memset(made, value, size);
    } else {
      check("gpumem_fill", "a block", {GPUMEM_SUCCESS},
            gpumem_fill(stage_.instance, made, size, value, 1, nullptr));
    }
  }
  const std::lock_guard lock(stage_.mutex);
  for (const Stage::Block& other : stage_.blocks) {
    player_.require(
        block.pointer + block.size <= other.pointer || other.pointer + other.size <= block.pointer,
        "two blocks that live share bytes");
  }
  stage_.blocks.push_back(block);
}

std::optional<Stage::Block> Crew::take_out(uint8_t number, const Shared* of) {
  std::vector<size_t> fitting;
  for (size_t i = 0; i < stage_.blocks.size(); ++i)
    if (of == nullptr || stage_.blocks[i].pool == of) fitting.push_back(i);
  if (fitting.empty()) return {};
  std::swap(stage_.blocks[fitting[number % fitting.size()]], stage_.blocks.back());
  const Stage::Block block = stage_.blocks.back();
  stage_.blocks.pop_back();
  return block;
}

// Nobody else has had the bytes of a block meanwhile.
void Crew::look_at(const Stage::Block& block) {
  if (block.stream != nullptr) {
    check(
        "gpumem_stream_synchronize", "before a look at a block", {GPUMEM_SUCCESS},
        gpumem_stream_synchronize(as<gpumem_stream>(block.stream->handle), GPUMEM_TIMEOUT_INFINITE, nullptr));
  }
  std::vector<uint8_t> copied;
  const uint8_t* bytes = block.pointer;
  if (!player_.pool(block.pool->index).on_host()) {
    copied.resize(block.size);
    check("gpumem_copy", "to look at a block", {GPUMEM_SUCCESS},
          gpumem_copy(stage_.instance, copied.data(), block.pointer, block.size, nullptr, nullptr));
    bytes = copied.data();
  }
  for (uint64_t i = 0; i < block.size; ++i) {
    if (bytes[i] == block.value) continue;
    player_.fail("byte " + std::to_string(i) + " of a block of a pool that threads share is " +
                 std::to_string(bytes[i]) + "; expected " + std::to_string(block.value));
  }
}

// In the order of a stream, or of none. Blocks of a pool that is gone are freed by their pointer.
void Crew::give_block(const Stage::Block& block, const Shared* in) {
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  const gpumem_status status =
      check("gpumem_pool_free", text("pool", *block.pool), with({GPUMEM_SUCCESS}, {block.pool}),
            gpumem_pool_free(as<gpumem_pool>(block.pool->handle), block.pointer, stream, nullptr));
  if (status == GPUMEM_SUCCESS) return;
  check("gpumem_pool_free_pointer", "of a pool that is gone", {GPUMEM_SUCCESS},
        gpumem_pool_free_pointer(stage_.instance, block.pointer, stream, nullptr));
}

void Crew::give_block(Choice& choice) {
  const uint8_t number = choice.byte();
  const bool looks = choice.byte() % 4 != 3;
  const Shared* in = pick_lasting(choice);
  std::optional<Stage::Block> block;
  {
    const std::lock_guard lock(stage_.mutex);
    block = take_out(number, nullptr);
  }
  if (!block) return;
  if (looks) {
    look_at(*block);
    // All its work is over.
    return give_block(*block, in);
  }
  give_block(*block, block->stream);
}

// Several blocks of one pool, in the order of one stream, as all work on them is over.
void Crew::give_batch(Choice& choice) {
  const uint8_t number = choice.byte();
  const size_t most = 1 + choice.byte() % kBatchMost;
  const Shared* const in = pick_lasting(choice);
  std::vector<Stage::Block> blocks;
  {
    const std::lock_guard lock(stage_.mutex);
    while (blocks.size() < most) {
      const auto one = take_out(number, blocks.empty() ? nullptr : blocks.front().pool);
      if (!one) break;
      blocks.push_back(*one);
    }
  }
  if (blocks.empty()) return;
  std::vector<void*> pointers;
  for (const Stage::Block& block : blocks) {
    look_at(block);
    pointers.push_back(block.pointer);
  }
  const Shared& of = *blocks.front().pool;
  const gpumem_stream stream = in == nullptr ? nullptr : as<gpumem_stream>(in->handle);
  const gpumem_status status = check(
      "gpumem_pool_free_batch", text("pool", of) + ", " + std::to_string(pointers.size()),
      with({GPUMEM_SUCCESS}, {&of}),
      gpumem_pool_free_batch(as<gpumem_pool>(of.handle), pointers.data(), pointers.size(), stream, nullptr));
  if (status == GPUMEM_SUCCESS) return;
  for (const Stage::Block& block : blocks)
    give_block(block, in);
}

void Crew::ask_pool(Kind kind, const Shared& shared, Choice& choice) {
  const auto handle = as<gpumem_pool>(shared.handle);
  const std::string name = text("pool", shared);
  const Expect expect = with({GPUMEM_SUCCESS}, {&shared});
  const uint8_t byte = choice.byte();
  switch (kind) {
    case Kind::k_pool_trim:
      check("gpumem_pool_trim", name, expect,
            gpumem_pool_trim(handle, byte * uint64_t{1024}, nullptr, nullptr));
      return;
    case Kind::k_pool_get_info: {
      gpumem_pool_info info = GPUMEM_POOL_INFO_INIT;
      check("gpumem_pool_get_info", name, expect, gpumem_pool_get_info(handle, &info, nullptr));
      return;
    }
    case Kind::k_pool_reset_peaks:
      check("gpumem_pool_reset_peaks", name, expect, gpumem_pool_reset_peaks(handle, nullptr));
      return;
    case Kind::k_pool_get_block_info: {
      // A block that stays meanwhile: nobody else can take it out.
      const std::lock_guard lock(stage_.mutex);
      if (stage_.blocks.empty()) return;
      const Stage::Block& block = stage_.blocks[byte % stage_.blocks.size()];
      gpumem_pool_block_info info = GPUMEM_POOL_BLOCK_INFO_INIT;
      check("gpumem_pool_get_block_info", "a block", {GPUMEM_SUCCESS},
            gpumem_pool_get_block_info(stage_.instance, block.pointer + block.size - 1, &info, nullptr));
      player_.require(info.base == block.pointer && info.usable_size >= block.size,
                      "an address in a block belongs to another one");
      return;
    }
    case Kind::k_pool_free_sized:
      // No block begins there.
      check("gpumem_pool_free_sized", name + ", heap", with({GPUMEM_ERROR_NOT_FOUND}, {&shared}),
            gpumem_pool_free_sized(handle, player_.model_.arena.writable(), 64, nullptr, nullptr));
      return;
    case Kind::k_pool_destroy:
      return destroy("gpumem_pool_destroy", "pool", shared,
                     [&] { return gpumem_pool_destroy(handle, nullptr); });
    default:
      return;
  }
}

// Pages of this thread; what was registered before may be in the way.
void Crew::register_pages(Choice& choice) {
  if (registered_ != nullptr) {
    check("gpumem_unregister", "own", {GPUMEM_SUCCESS},
          gpumem_unregister(stage_.instance, registered_, nullptr));
    registered_ = nullptr;
    return;
  }
  const Arena& arena = player_.model_.arena;
  uint8_t* const pages = arena.writable() + number_ * (arena.size() / 4) + choice.byte();
  const Expect expect = {GPUMEM_SUCCESS, GPUMEM_ERROR_ALREADY_EXISTS, GPUMEM_ERROR_LIMIT_EXCEEDED,
                         GPUMEM_ERROR_SYMBOL_MISSING};
  if (check("gpumem_register", "own pages", expect,
            gpumem_register(stage_.devices.front(), pages, arena.page(), 0, nullptr)) == GPUMEM_SUCCESS) {
    registered_ = pages;
    ++made_[GPUMEM_KIND_REGISTERED];
  }
}

void Crew::open_another() {
  gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
  desc.backend = player_.model_.on_host ? GPUMEM_BACKEND_HOST : GPUMEM_BACKEND_CUDA;
  gpumem_instance other = nullptr;
  check("gpumem_instance_open", "another", {GPUMEM_SUCCESS}, gpumem_instance_open(&desc, &other, nullptr));
  check("gpumem_instance_close", "the other one", {GPUMEM_SUCCESS},
        gpumem_instance_close(other, GPUMEM_CLOSE_CHECK, nullptr, nullptr));
  check("gpumem_instance_close", "the other one again", {GPUMEM_ERROR_CLOSED, kStale},
        gpumem_instance_close(other, GPUMEM_CLOSE_CHECK, nullptr, nullptr));
}

void Crew::play(const Step& step) {
  Choice choice(step);
  const Shared* const memory = pick(choice, stage_.memories);
  const Shared* const stream = pick(choice, stage_.streams);
  const Shared* const event = pick(choice, stage_.events);
  const Expect ready = {GPUMEM_SUCCESS, GPUMEM_NOT_READY};
  switch (step.kind) {
    case Kind::k_memory_create:
    case Kind::k_malloc:
      return create(choice);
    case Kind::k_memory_destroy:
    case Kind::k_free:
      if (choice.byte() % 3 == 0 && !own_.empty()) {
        check("gpumem_memory_destroy", "own", {GPUMEM_SUCCESS}, gpumem_memory_destroy(own_.back(), nullptr));
        own_.pop_back();
      } else if (memory != nullptr) {
        destroy("gpumem_memory_destroy", "memory", *memory,
                [&] { return gpumem_memory_destroy(as<gpumem_memory>(memory->handle), nullptr); });
      }
      return;
    case Kind::k_memory_get_info:
      if (memory != nullptr) {
        gpumem_memory_info info = GPUMEM_MEMORY_INFO_INIT;
        const gpumem_status status =
            check("gpumem_memory_get_info", text("memory", *memory), with({GPUMEM_SUCCESS}, {memory}),
                  gpumem_memory_get_info(as<gpumem_memory>(memory->handle), &info, nullptr));
        const Memory& known = player_.memory(memory->index);
        player_.require(status != GPUMEM_SUCCESS || info.buffer_id == known.buffer_id,
                        "a handle reaches another memory");
      }
      return;
    case Kind::k_pointer_get_info:
      if (memory != nullptr) {
        gpumem_pointer_info info = GPUMEM_POINTER_INFO_INIT;
        const Memory& known = player_.memory(memory->index);
        uint8_t* const address = known.host != nullptr ? known.host : known.address;
        check("gpumem_pointer_get_info", text("memory", *memory), {GPUMEM_SUCCESS},
              gpumem_pointer_get_info(stage_.instance, address, &info, nullptr));
        player_.require(memory->doomed || (info.kind == known.kind && info.buffer_id == known.buffer_id),
                        "an address belongs to another memory");
      }
      return;
    case Kind::k_pool_alloc:
    case Kind::k_pool_alloc_aligned:
    case Kind::k_pool_alloc_native:
    case Kind::k_pool_create:
    // Threads have no part in those of buffers, managed memory and ranges otherwise.
    case Kind::k_buffer_create:
    case Kind::k_managed_prefetch:
      return take_block(choice);
    case Kind::k_pool_try_alloc:
    case Kind::k_buffer_resize:
      return try_block(choice);
    case Kind::k_pool_alloc_batch:
    case Kind::k_managed_advise:
      return take_batch(choice);
    case Kind::k_pool_free_batch:
    case Kind::k_managed_attach:
      return give_batch(choice);
    case Kind::k_pool_free:
    case Kind::k_pool_free_native:
    case Kind::k_pool_free_pointer:
    case Kind::k_pool_use:
    case Kind::k_buffer_sleep:
    case Kind::k_buffer_wake:
    case Kind::k_range_map:
      return give_block(choice);
    case Kind::k_copy:
    case Kind::k_copy_2d:
      return data(choice, true);
    case Kind::k_copy_async:
    case Kind::k_copy_2d_async:
    case Kind::k_copy_regions:
    case Kind::k_copy_regions_async:
    case Kind::k_copy_file:
      return upload(choice);
    case Kind::k_fill:
    case Kind::k_fill_2d:
    case Kind::k_cpu_write:
      return data(choice, false);
    case Kind::k_cpu_check:
      return check_data(choice);
    case Kind::k_register:
    case Kind::k_unregister:
      return register_pages(choice);
    case Kind::k_instance_open:
    case Kind::k_instance_default:
      return open_another();
    case Kind::k_instance_close:
      if (stage_.anything_stays) {
        check("gpumem_instance_close", "the shared one", {GPUMEM_ERROR_BUSY},
              gpumem_instance_close(stage_.instance, GPUMEM_CLOSE_CHECK, nullptr, nullptr));
      }
      return;
    case Kind::k_stats_get:
    case Kind::k_stats_report: {
      char buffer[256];
      check("gpumem_stats_report", "the shared one", {GPUMEM_SUCCESS},
            gpumem_stats_report(stage_.instance, buffer, sizeof buffer, nullptr, nullptr));
      return;
    }
    case Kind::k_stats_snapshot: {
      char buffer[256];
      check("gpumem_stats_snapshot", "the shared one", {GPUMEM_SUCCESS},
            gpumem_stats_snapshot(stage_.instance, buffer, sizeof buffer, nullptr, nullptr));
      return;
    }
    case Kind::k_device_get_capability: {
      gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
      check("gpumem_device_get_capability", "pin.page_locked", {GPUMEM_SUCCESS},
            gpumem_device_get_capability(stage_.devices.front(), GPUMEM_CAPABILITY_PIN_PAGE_LOCKED, nullptr,
                                         &info, nullptr));
      return;
    }
    case Kind::k_log_set_function:
      check("gpumem_log_set_function", "NULL", {GPUMEM_SUCCESS},
            gpumem_log_set_function(nullptr, nullptr, 0, nullptr));
      return;
    default:
      break;
  }
  if (const Shared* const pool = pick(choice, stage_.pools); pool != nullptr)
    ask_pool(step.kind, *pool, choice);
  if (stream != nullptr) {
    const auto handle = as<gpumem_stream>(stream->handle);
    switch (step.kind) {
      case Kind::k_stream_query:
        check("gpumem_stream_query", text("stream", *stream), with(ready, {stream}),
              gpumem_stream_query(handle, nullptr));
        return;
      case Kind::k_stream_synchronize:
        check("gpumem_stream_synchronize", text("stream", *stream), with({GPUMEM_SUCCESS}, {stream}),
              gpumem_stream_synchronize(handle, GPUMEM_TIMEOUT_INFINITE, nullptr));
        return;
      case Kind::k_stream_destroy:
        return destroy("gpumem_stream_destroy", "stream", *stream,
                       [&] { return gpumem_stream_destroy(handle, nullptr); });
      case Kind::k_stream_get_info: {
        gpumem_stream_info info = GPUMEM_STREAM_INFO_INIT;
        check("gpumem_stream_get_info", text("stream", *stream), with({GPUMEM_SUCCESS}, {stream}),
              gpumem_stream_get_info(handle, &info, nullptr));
        return;
      }
      default:
        break;
    }
  }
  if (event == nullptr) return;
  const auto handle = as<gpumem_event>(event->handle);
  switch (step.kind) {
    case Kind::k_event_query:
      check("gpumem_event_query", text("event", *event), with(ready, {event}),
            gpumem_event_query(handle, nullptr));
      return;
    case Kind::k_event_synchronize:
      check("gpumem_event_synchronize", text("event", *event), with({GPUMEM_SUCCESS}, {event}),
            gpumem_event_synchronize(handle, GPUMEM_TIMEOUT_INFINITE, nullptr));
      return;
    case Kind::k_event_destroy:
      return destroy("gpumem_event_destroy", "event", *event,
                     [&] { return gpumem_event_destroy(handle, nullptr); });
    case Kind::k_event_record:
      if (stream != nullptr) {
        const Expect expect = {event->device == stream->device ? GPUMEM_SUCCESS : kInvalid};
        check("gpumem_event_record", text("event", *event) + ", " + text("stream", *stream),
              with(expect, {event, stream}),
              gpumem_event_record(handle, as<gpumem_stream>(stream->handle), nullptr));
      }
      return;
    case Kind::k_stream_wait_event:
      if (stream != nullptr) {
        check("gpumem_stream_wait_event", text("stream", *stream) + ", " + text("event", *event),
              with({GPUMEM_SUCCESS}, {event, stream}),
              gpumem_stream_wait_event(as<gpumem_stream>(stream->handle), handle, nullptr));
      }
      return;
    default:
      return;
  }
}

// The second half of a sequence, dealt to threads. Afterwards everything is as certain as before.
void Player::play_together(const Sequence& sequence, size_t first) {
  open_gates();
  const auto lost = [](const Device& each) { return each.life == Life::kLive && each.lost; };
  if (std::any_of(model_.devices.begin(), model_.devices.end(), lost)) return;
  for (size_t i = 0; i < model_.instances.size(); ++i)
    if (model_.instances[i].life == Life::kLive) disarm(static_cast<int>(i));
  Stage stage;
  int home = -1;
  for (size_t i = 0; i < model_.instances.size() && home < 0; ++i)
    if (model_.instances[i].life == Life::kLive && !model_.instances[i].is_default)
      home = static_cast<int>(i);
  stage.instance = as<gpumem_instance>(instance(home).handle);
  for (const int index : instance(home).devices)
    stage.devices.push_back(as<gpumem_device>(device(index).handle));
  const auto share = [&](std::vector<Shared>& list, const auto& objects, size_t doomed, const auto& fits) {
    for (size_t i = 0; i < objects.size(); ++i) {
      const auto& object = objects[i];
      if (object.life != Life::kLive || object.instance != home || !fits(object)) continue;
      const bool is_doomed = i % doomed == doomed - 1;
      list.push_back(
          {object.handle, static_cast<int>(i), object.device, is_doomed, &stage.destroyed.emplace_back(0)});
    }
  };
  // All that was begun is over before the threads begin.
  for (Stream& each : model_.streams) {
    if (each.life != Life::kLive || model_.is_observed(model_.mark(each.line))) continue;
    if (line(each.line).capturing) return;
    if (!wait_for(each.line)) return;
  }
  share(stage.memories, model_.memories, 3, [&](const Memory& memory) {
    const auto& uses = memory.uses;
    return region(memory.region).tainted_by < 0 && std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
             return model_.is_observed(use.line, use.number);
           });
  });
  share(stage.streams, model_.streams, 4, [&](const Stream& each) {
    return !line(each.line).capturing && !line(each.line).retired && line(each.line).handles == 1 &&
           !each.wrapped;
  });
  share(stage.events, model_.events, 3, [](const Event& each) { return !each.wrapped; });
  // Every second sequence has a pool at least.
  if (sequence.setup % 2 == 0) share_pool(home, sequence.setup / 2);
  share(stage.pools, model_.pools, 2, [](const Pool&) { return true; });
  if (sequence.setup % 8 == 0) stage.pools.back().doomed = true;
  for (Shared& each : stage.pools) {
    // How much memory such a pool leaves behind, nobody could say.
    if (!pool(each.index).blocks.empty()) each.doomed = false;
  }
  for (const auto* list : {&stage.memories, &stage.streams, &stage.events, &stage.pools}) {
    for (const Shared& each : *list)
      stage.anything_stays = stage.anything_stays || !each.doomed;
  }

  std::vector<std::vector<Step>> dealt(options_.threads);
  for (size_t i = first; i < sequence.steps.size(); ++i)
    dealt[sequence.steps[i].thread % options_.threads].push_back(sequence.steps[i]);
  std::deque<Crew> crew;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < options_.threads; ++i) {
    Crew& member = crew.emplace_back(*this, stage, i, options_.threads);
    threads.emplace_back([&member, &steps = dealt[i]] { member.run(steps); });
  }
  for (std::thread& thread : threads)
    thread.join();

  for (const Stage::Block& block : stage.blocks)
    crew.front().give_rest(block);
  Tally& expected = instance(home).stats;
  for (const Crew& member : crew) {
    coverage_.add(member.coverage());
    trace_.insert(trace_.end(), member.trace().begin(), member.trace().end());
    require(member.problem().empty(), member.problem());
    for (const auto& [index, count] : member.taken())
      pool(index).allocated += count;
    expected.device.total_count += member.made(GPUMEM_KIND_DEVICE);
    expected.pinned.total_count += member.made(GPUMEM_KIND_PINNED);
    expected.registered.total_count += member.made(GPUMEM_KIND_REGISTERED);
    expected.managed.total_count += member.made(GPUMEM_KIND_MANAGED);
  }
  const auto once = [&](const std::vector<Shared>& list, const auto& forget) {
    for (const Shared& each : list) {
      require(*each.destroyed <= 1, "an object was destroyed twice");
      if (*each.destroyed == 1) forget(each);
    }
  };
  once(stage.memories, [&](const Shared& each) { model_.remove_memory(memory(each.index)); });
  once(stage.streams, [&](const Shared& each) {
    Stream& ended = stream(each.index);
    --line(ended.line).handles;
    line(ended.line).retired = true;
    model_.end(ended, Life::kDestroyed);
    --expected.streams;
  });
  once(stage.events, [&](const Shared& each) {
    model_.end(event(each.index), Life::kDestroyed);
    --expected.events;
  });
  // A thread may have used one in any stream.
  for (const Shared& each : stage.pools) {
    for (const Shared& in : stage.streams)
      pool(each.index).lines.push_back(stream(in.index).line);
  }
  once(stage.pools, [&](const Shared& each) { end_pool(each.index); });
  for (const Shared& each : stage.pools) {
    if (pool(each.index).life != Life::kLive) continue;
    PoolOrder any;  // the threads allocate in streams
    any.line = 0;
    check_waits(each.index, any);
    follow_pool(each.index, true);
  }
  follow_pools(home);
  // The peaks, and the bytes that the threads made in all, depend on who was first.
  Tally now;
  require(now.read(stage.instance), "the counts cannot be read, or the totals are not their sums");
  const auto take = [&](gpumem_kind_stats& known, const gpumem_kind_stats& told) {
    require(told.peak_count >= known.peak_count && told.peak_bytes >= known.peak_bytes &&
                told.total_bytes >= known.total_bytes && told.peak_bytes <= told.total_bytes,
            "the peaks are below what was there");
    known.peak_count = told.peak_count;
    known.peak_bytes = told.peak_bytes;
    known.total_bytes = told.total_bytes;
  };
  take(expected.device, now.device);
  take(expected.pinned, now.pinned);
  take(expected.registered, now.registered);
  take(expected.managed, now.managed);
  check_all();
}

}  // namespace sequences
