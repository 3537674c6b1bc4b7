// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Runs vectors.txt through the C interface and prints a line of TAP for each case. The runners of the
// bindings do the same in their own language; README.md has the language of the file. Usage: vectors FILE
// host|cuda

#include <fcntl.h>
#include <gpumem/gpumem.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace {

struct Malloced {
  std::byte* pointer;
};
struct FreePages {
  void operator()(void* pages) const { std::free(pages); }
};
using Buffer = std::unique_ptr<void, FreePages>;
// A file without a name, and a descriptor for those who may only read it.
struct TemporaryFile {
  int descriptor = -1;
  int given = -1;

  TemporaryFile() = default;
  TemporaryFile(TemporaryFile&& other) noexcept
      : descriptor(std::exchange(other.descriptor, -1)), given(std::exchange(other.given, -1)) {}
  TemporaryFile& operator=(TemporaryFile&& other) noexcept {
    std::swap(descriptor, other.descriptor);
    std::swap(given, other.given);
    return *this;
  }
  ~TemporaryFile() {
    if (given != descriptor) ::close(given);
    if (descriptor != -1) ::close(descriptor);
  }
};
using Object = std::variant<std::monostate, gpumem_instance, gpumem_device, gpumem_memory, gpumem_stream,
                            gpumem_event, gpumem_buffer, gpumem_group, gpumem_pool, gpumem_share_handle,
                            uint64_t, Buffer, Malloced, TemporaryFile>;

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error(text); }

std::string required(const char* text) { return text ? text : ""; }

uint64_t number(const std::string& text) {
  size_t used = 0;
  const uint64_t value =
      text.starts_with('-') ? static_cast<uint64_t>(std::stoll(text, &used, 0)) : std::stoull(text, &used, 0);
  if (used != text.size()) fail("no number: " + text);
  return value;
}

using Names = std::map<std::string, uint64_t>;

const Names kKinds{{"pageable", GPUMEM_KIND_PAGEABLE},
                   {"pinned", GPUMEM_KIND_PINNED},
                   {"registered", GPUMEM_KIND_REGISTERED},
                   {"managed", GPUMEM_KIND_MANAGED},
                   {"virtual", GPUMEM_KIND_VIRTUAL},
                   {"device", GPUMEM_KIND_DEVICE},
                   {"pool", GPUMEM_KIND_POOL}};
const Names kMemoryFlags{{"portable", GPUMEM_MEMORY_PORTABLE},
                         {"mapped", GPUMEM_MEMORY_MAPPED},
                         {"write_combined", GPUMEM_MEMORY_WRITE_COMBINED},
                         {"read_only", GPUMEM_MEMORY_READ_ONLY},
                         {"iomemory", GPUMEM_MEMORY_IOMEMORY},
                         {"page_locked", GPUMEM_MEMORY_PAGE_LOCKED},
                         {"numa_node", GPUMEM_MEMORY_NUMA_NODE},
                         {"shareable", GPUMEM_MEMORY_SHAREABLE}};
const Names kEventFlags{{"disable_timing", GPUMEM_EVENT_DISABLE_TIMING},
                        {"blocking_sync", GPUMEM_EVENT_BLOCKING_SYNC},
                        {"interprocess", GPUMEM_EVENT_INTERPROCESS}};
const Names kHandleTypes{{"posix_fd", GPUMEM_HANDLE_TYPE_POSIX_FD}, {"fabric", GPUMEM_HANDLE_TYPE_FABRIC}};
const Names kWays{{"any", GPUMEM_SHARE_WAY_ANY},
                  {"legacy", GPUMEM_SHARE_WAY_LEGACY},
                  {"posix_fd", GPUMEM_SHARE_WAY_POSIX_FD},
                  {"fabric", GPUMEM_SHARE_WAY_FABRIC},
                  {"dma_buf", GPUMEM_SHARE_WAY_DMA_BUF}};
const Names kShareTypes{{"memory", GPUMEM_SHARE_TYPE_MEMORY}, {"event", GPUMEM_SHARE_TYPE_EVENT}};
const Names kExportFlags{{"neighbours", GPUMEM_EXPORT_NEIGHBOURS}};
const Names kPeers{{"other_process", GPUMEM_PEER_OTHER_PROCESS},
                   {"same_process", GPUMEM_PEER_SAME_PROCESS},
                   {"other_user", GPUMEM_PEER_OTHER_USER},
                   {"other_device", GPUMEM_PEER_OTHER_DEVICE},
                   {"container", GPUMEM_PEER_CONTAINER}};
const Names kConditions{
    {"geq", GPUMEM_WAIT_GEQ}, {"eq", GPUMEM_WAIT_EQ}, {"and", GPUMEM_WAIT_AND}, {"nor", GPUMEM_WAIT_NOR}};
const Names kAccess{{"none", GPUMEM_ACCESS_NONE},
                    {"read", GPUMEM_ACCESS_READ},
                    {"readwrite", GPUMEM_ACCESS_READWRITE},
                    {"unknown", GPUMEM_ACCESS_UNKNOWN}};
const Names kBufferFlags{{"movable", GPUMEM_BUFFER_MOVABLE}, {"copyable", GPUMEM_BUFFER_COPYABLE}};
const Names kPoolFlags{{"internal_dependencies", GPUMEM_POOL_ALLOW_INTERNAL_DEPENDENCIES},
                       {"debug", GPUMEM_POOL_DEBUG},
                       {"from_driver", GPUMEM_POOL_FROM_DRIVER}};
const Names kContents{{"pinned", GPUMEM_CONTENT_PINNED},
                      {"pageable", GPUMEM_CONTENT_PAGEABLE},
                      {"zero", GPUMEM_CONTENT_ZERO},
                      {"drop", GPUMEM_CONTENT_DROP},
                      {"file", GPUMEM_CONTENT_FILE}};
const Names kStates{{"awake", GPUMEM_BUFFER_STATE_AWAKE},
                    {"asleep", GPUMEM_BUFFER_STATE_ASLEEP},
                    {"failed", GPUMEM_BUFFER_STATE_FAILED}};
const Names kCloseModes{{"check", GPUMEM_CLOSE_CHECK}, {"force", GPUMEM_CLOSE_FORCE}};
const Names kBackends{
    {"any", GPUMEM_BACKEND_ANY}, {"cuda", GPUMEM_BACKEND_CUDA}, {"host", GPUMEM_BACKEND_HOST}};

uint64_t named(const Names& names, const std::string& text) {
  const auto found = names.find(text);
  return found != names.end() ? found->second : number(text);
}

uint64_t flags(const Names& names, const std::string& text) {
  uint64_t sum = 0;
  std::istringstream list(text);
  for (std::string name; std::getline(list, name, ',');)
    sum |= named(names, name);
  return sum;
}

// One line of the file, taken apart.
struct Step {
  std::string result, operation, status = "SUCCESS";
  std::vector<std::string> arguments;
  std::map<std::string, std::string> options;

  explicit Step(const std::string& line) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;)
      words.push_back(word);
    if (words.size() > 2 && words[1] == "=") {
      result = words[0];
      words.erase(words.begin(), words.begin() + 2);
    }
    if (words.size() > 2 && words[words.size() - 2] == "->") {
      status = words.back();
      words.resize(words.size() - 2);
    }
    operation = words.at(0);
    for (size_t i = 1; i < words.size(); ++i) {
      const size_t equals = words[i].find('=');
      if (equals == std::string::npos)
        arguments.push_back(words[i]);
      else
        options[words[i].substr(0, equals)] = words[i].substr(equals + 1);
    }
  }

  const std::string& argument(size_t index) const { return arguments.at(index); }
  const std::string* option(const std::string& name) const {
    const auto found = options.find(name);
    return found == options.end() ? nullptr : &found->second;
  }
  uint64_t value(const std::string& name, uint64_t otherwise = 0) const {
    const std::string* text = option(name);
    return text ? number(*text) : otherwise;
  }
  uint64_t value(const std::string& name, const Names& names, uint64_t otherwise = 0) const {
    const std::string* text = option(name);
    return text ? named(names, *text) : otherwise;
  }
  uint64_t sum(const std::string& name, const Names& names) const {
    const std::string* text = option(name);
    return text ? flags(names, *text) : 0;
  }
};

class Case {
 public:
  explicit Case(gpumem_backend backend) : backend_(backend) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  // Closing takes everything else along.
  ~Case() {
    for (const gpumem_instance instance : open_)
      gpumem_instance_close(instance, GPUMEM_CLOSE_FORCE, nullptr, nullptr);
  }

  // Throws what went differently.
  void run(const Step& step) {
    const auto found = operations().find(step.operation);
    if (found == operations().end()) fail("no such operation: " + step.operation);
    error_ = GPUMEM_ERROR_INIT;
    const gpumem_status status = (this->*found->second)(step);
    const std::string name = gpumem_status_name(status);
    const bool expected = name == "GPUMEM_" + step.status || name == "GPUMEM_ERROR_" + step.status;
    if (!expected) fail("expected " + step.status + ", got " + name + ": " + error_.message);
    if (error_.status != status) fail(name + " was returned, but the detail has another status");
    if (GPUMEM_FAILED(status) && !error_.message[0]) fail(name + " has no message");
  }

 private:
  using Operation = gpumem_status (Case::*)(const Step&);

  static const std::map<std::string, Operation>& operations() {
    static const std::map<std::string, Operation> list{
        {"open", &Case::open},
        {"close", &Case::close},
        {"device", &Case::device},
        {"create", &Case::create},
        {"register", &Case::register_memory},
        {"buffer", &Case::buffer},
        {"malloc", &Case::malloc},
        {"free", &Case::free},
        {"register_pointer", &Case::register_pointer},
        {"unregister_pointer", &Case::unregister_pointer},
        {"stream", &Case::stream},
        {"event", &Case::event},
        {"destroy", &Case::destroy},
        {"record", &Case::record},
        {"wait", &Case::wait},
        {"query", &Case::query},
        {"synchronize", &Case::synchronize},
        {"elapsed", &Case::elapsed},
        {"copy", &Case::copy},
        {"copy_2d", &Case::copy_2d},
        {"copy_regions", &Case::copy_regions},
        {"fill", &Case::fill},
        {"fill_2d", &Case::fill_2d},
        {"write_value", &Case::write_value},
        {"wait_value", &Case::wait_value},
        {"set", &Case::set},
        {"expect", &Case::expect},
        {"info", &Case::info},
        {"pointer", &Case::pointer},
        {"access", &Case::access},
        {"count", &Case::count},
        {"capability", &Case::capability},
        {"peer", &Case::peer},
        {"status_name", &Case::status_name},
        {"growable", &Case::growable},
        {"group", &Case::group},
        {"resize", &Case::resize},
        {"set_capacity", &Case::set_capacity},
        {"note", &Case::note},
        {"forget", &Case::forget},
        {"sleep", &Case::sleep},
        {"wake", &Case::wake},
        {"prepare", &Case::prepare},
        {"buffer_info", &Case::buffer_info},
        {"group_info", &Case::group_info},
        {"pool", &Case::pool},
        {"alloc", &Case::alloc},
        {"free_block", &Case::free_block},
        {"free_pointer", &Case::free_pointer},
        {"record_use", &Case::record_use},
        {"trim", &Case::trim},
        {"set_limit", &Case::set_limit},
        {"set_threshold", &Case::set_threshold},
        {"pool_info", &Case::pool_info},
        {"block_info", &Case::block_info},
        {"export", &Case::export_memory},
        {"export_event", &Case::export_event},
        {"handle", &Case::handle},
        {"damage", &Case::damage},
        {"same", &Case::same_handles},
        {"share_info", &Case::share_info},
        {"descriptors", &Case::descriptors},
        {"revoke", &Case::revoke},
        {"import", &Case::import_memory},
        {"import_event", &Case::import_event},
        {"way", &Case::way},
        {"cache", &Case::cache},
        {"flush_cache", &Case::flush_cache},
        {"file", &Case::file},
        {"expect_file", &Case::expect_file},
        {"read_file", &Case::copy_file},
        {"write_file", &Case::copy_file},
        {"capturing", &Case::capturing},
        {"capture", &Case::capture},
        {"release_capture", &Case::release_capture},
    };
    return list;
  }

  template <class T>
  T get(const std::string& name) {
    const auto found = objects_.find(name);
    if (found == objects_.end() || !std::holds_alternative<T>(found->second)) fail("no such object: " + name);
    return std::get<T>(found->second);
  }
  gpumem_stream stream_of(const Step& step) {
    const std::string* name = step.option("stream");
    return name ? get<gpumem_stream>(*name) : nullptr;
  }

  template <class T>
  gpumem_status keep(const Step& step, gpumem_status status, T&& object) {
    if (status == GPUMEM_SUCCESS) objects_.insert_or_assign(step.result, std::forward<T>(object));
    return status;
  }

  std::byte* address(const std::string& text) {
    if (text == "null") return nullptr;
    const size_t plus = text.find('+');
    const uint64_t offset = plus == std::string::npos ? 0 : number(text.substr(plus + 1));
    const auto found = objects_.find(text.substr(0, plus));
    if (found == objects_.end()) fail("no such memory: " + text);
    if (const Buffer* pages = std::get_if<Buffer>(&found->second))
      return static_cast<std::byte*>(pages->get()) + offset;
    if (const Malloced* block = std::get_if<Malloced>(&found->second)) return block->pointer + offset;
    if (const gpumem_buffer* grown = std::get_if<gpumem_buffer>(&found->second))
      return static_cast<std::byte*>(info_of(*grown).base) + offset;
    const gpumem_memory_info known = info_of(get<gpumem_memory>(found->first));
    void* const first = known.kind == GPUMEM_KIND_DEVICE ? known.device_pointer : known.host_pointer;
    return static_cast<std::byte*>(first) + offset;
  }

  gpumem_memory_info info_of(gpumem_memory memory) {
    gpumem_memory_info known = GPUMEM_MEMORY_INFO_INIT;
    if (GPUMEM_FAILED(gpumem_memory_get_info(memory, &known, &error_))) fail(error_.message);
    return known;
  }

  gpumem_buffer_info info_of(gpumem_buffer buffer) {
    gpumem_buffer_info known = GPUMEM_BUFFER_INFO_INIT;
    if (GPUMEM_FAILED(gpumem_buffer_get_info(buffer, &known, &error_))) fail(error_.message);
    return known;
  }

  static void same(const std::string& what, const std::string& expected, const std::string& got) {
    if (expected != got) fail(what + ": expected " + expected + ", got " + got);
  }
  static void same(const std::string& what, uint64_t expected, uint64_t got) {
    same(what, std::to_string(expected), std::to_string(got));
  }

  gpumem_status open(const Step& step) {
    gpumem_instance_desc desc = GPUMEM_INSTANCE_DESC_INIT;
    desc.backend =
        static_cast<gpumem_backend>(step.value("backend", kBackends, static_cast<uint64_t>(backend_)));
    desc.pin_budget = step.value("pin_budget");
    gpumem_instance made = nullptr;
    const gpumem_status status = gpumem_instance_open(&desc, &made, &error_);
    if (made) open_.push_back(made);
    return keep(step, status, made);
  }
  gpumem_status close(const Step& step) {
    const gpumem_instance instance = get<gpumem_instance>(step.argument(0));
    const auto mode = static_cast<gpumem_close_mode>(step.value("mode", kCloseModes));
    const gpumem_status status = gpumem_instance_close(instance, mode, nullptr, &error_);
    if (status == GPUMEM_SUCCESS) std::erase(open_, instance);
    return status;
  }
  gpumem_status device(const Step& step) {
    gpumem_device found = nullptr;
    const gpumem_status status =
        gpumem_device_get(get<gpumem_instance>(step.argument(0)),
                          static_cast<uint32_t>(number(step.argument(1))), &found, &error_);
    return keep(step, status, found);
  }

  gpumem_status create(const Step& step) {
    gpumem_memory_desc desc = GPUMEM_MEMORY_DESC_INIT;
    desc.kind = static_cast<gpumem_kind>(step.value("kind", kKinds));
    desc.size = step.value("size");
    desc.alignment = step.value("alignment");
    desc.require = step.sum("require", kMemoryFlags);
    desc.prefer = step.sum("prefer", kMemoryFlags);
    desc.numa_node = static_cast<int32_t>(step.value("numa_node"));
    if (const std::string* name = step.option("name")) desc.name = name->c_str();
    gpumem_memory made = nullptr;
    const gpumem_status status =
        gpumem_memory_create(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status register_memory(const Step& step) {
    gpumem_register_desc desc = GPUMEM_REGISTER_DESC_INIT;
    desc.pointer = address(step.argument(1));
    desc.size = step.value("size");
    desc.require = step.sum("require", kMemoryFlags);
    desc.prefer = step.sum("prefer", kMemoryFlags);
    if (const std::string* name = step.option("name")) desc.name = name->c_str();
    gpumem_memory made = nullptr;
    const gpumem_status status =
        gpumem_memory_register(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status buffer(const Step& step) {
    constexpr size_t kPage = 4096;
    const size_t bytes = (number(step.argument(0)) + kPage - 1) / kPage * kPage;
    Buffer pages(std::aligned_alloc(kPage, bytes));
    if (!pages) fail("no memory for the buffer");
    std::memset(pages.get(), 0, bytes);
    return keep(step, GPUMEM_SUCCESS, std::move(pages));
  }
  gpumem_status malloc(const Step& step) {
    void* made = nullptr;
    const gpumem_status status = gpumem_malloc(get<gpumem_device>(step.argument(0)),
                                               static_cast<gpumem_kind>(step.value("kind", kKinds)),
                                               step.value("size"), &made, &error_);
    return keep(step, status, Malloced{static_cast<std::byte*>(made)});
  }
  gpumem_status free(const Step& step) {
    return gpumem_free(get<gpumem_instance>(step.argument(0)), address(step.argument(1)), &error_);
  }
  gpumem_status register_pointer(const Step& step) {
    return gpumem_register(get<gpumem_device>(step.argument(0)), address(step.argument(1)),
                           step.value("size"), step.sum("require", kMemoryFlags), &error_);
  }
  gpumem_status unregister_pointer(const Step& step) {
    return gpumem_unregister(get<gpumem_instance>(step.argument(0)), address(step.argument(1)), &error_);
  }

  gpumem_status pool(const Step& step) {
    gpumem_pool_desc desc = GPUMEM_POOL_DESC_INIT;
    desc.kind = static_cast<gpumem_kind>(step.value("kind", kKinds));
    desc.flags = step.sum("flags", kPoolFlags);
    desc.handle_types = step.sum("handle_types", kHandleTypes);
    desc.limit = step.value("limit");
    desc.release_threshold = step.value("threshold");
    desc.initial_size = step.value("initial");
    if (const std::string* name = step.option("name")) desc.name = name->c_str();
    gpumem_pool made = nullptr;
    const gpumem_status status =
        gpumem_pool_create(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status alloc(const Step& step) {
    const auto from = get<gpumem_pool>(step.argument(0));
    const uint64_t size = number(step.argument(1));
    void* made = nullptr;
    const gpumem_status status =
        step.option("alignment")
            ? gpumem_pool_alloc_aligned(from, size, step.value("alignment"), stream_of(step), &made, &error_)
            : gpumem_pool_alloc(from, size, stream_of(step), &made, &error_);
    return keep(step, status, Malloced{static_cast<std::byte*>(made)});
  }
  gpumem_status free_block(const Step& step) {
    return gpumem_pool_free(get<gpumem_pool>(step.argument(0)), address(step.argument(1)), stream_of(step),
                            &error_);
  }
  gpumem_status free_pointer(const Step& step) {
    return gpumem_pool_free_pointer(get<gpumem_instance>(step.argument(0)), address(step.argument(1)),
                                    stream_of(step), &error_);
  }
  gpumem_status record_use(const Step& step) {
    return gpumem_pool_record_use(get<gpumem_pool>(step.argument(0)), address(step.argument(1)),
                                  stream_of(step), &error_);
  }
  gpumem_status trim(const Step& step) {
    return gpumem_pool_trim(get<gpumem_pool>(step.argument(0)), step.value("keep"), nullptr, &error_);
  }
  gpumem_status set_limit(const Step& step) {
    return gpumem_pool_set_limit(get<gpumem_pool>(step.argument(0)), number(step.argument(1)), &error_);
  }
  gpumem_status set_threshold(const Step& step) {
    return gpumem_pool_set_release_threshold(get<gpumem_pool>(step.argument(0)), number(step.argument(1)),
                                             &error_);
  }
  gpumem_status pool_info(const Step& step) {
    gpumem_pool_info known = GPUMEM_POOL_INFO_INIT;
    const gpumem_status status = gpumem_pool_get_info(get<gpumem_pool>(step.argument(0)), &known, &error_);
    if (status != GPUMEM_SUCCESS) return status;
    if (step.option("kind")) same("kind", step.value("kind", kKinds), static_cast<uint64_t>(known.kind));
    if (step.option("limit")) same("limit", step.value("limit"), known.limit);
    if (step.option("threshold")) same("threshold", step.value("threshold"), known.release_threshold);
    if (step.option("live")) same("live", step.value("live"), known.live_count);
    if (step.option("captures")) same("captures", step.value("captures"), known.capture_count);
    if (const std::string* name = step.option("name")) same("name", *name, known.name);
    return status;
  }
  gpumem_status block_info(const Step& step) {
    gpumem_pool_block_info known = GPUMEM_POOL_BLOCK_INFO_INIT;
    std::byte* const at = address(step.argument(1));
    const gpumem_status status =
        gpumem_pool_get_block_info(get<gpumem_instance>(step.argument(0)), at, &known, &error_);
    if (status != GPUMEM_SUCCESS) return status;
    if (step.option("offset"))
      same("offset", step.value("offset"), static_cast<uint64_t>(at - static_cast<std::byte*>(known.base)));
    if (step.option("requested")) same("requested", step.value("requested"), known.requested_size);
    return status;
  }

  gpumem_status capturing(const Step& step) {
    return gpumem_host_stream_set_capturing(get<gpumem_stream>(step.argument(0)),
                                            static_cast<uint32_t>(number(step.argument(1))), &error_);
  }
  gpumem_status capture(const Step& step) {
    uint64_t found = 0;
    const gpumem_status status =
        gpumem_stream_get_capture_id(get<gpumem_stream>(step.argument(0)), &found, &error_);
    if (step.option("is")) same("that there is one", step.value("is"), found != 0 ? 1 : 0);
    return keep(step, status, found);
  }
  gpumem_status release_capture(const Step& step) {
    return gpumem_pool_release_capture(get<gpumem_pool>(step.argument(0)), get<uint64_t>(step.argument(1)),
                                       stream_of(step), &error_);
  }

  gpumem_status file(const Step& step) {
    char name[] = "/tmp/gpumem-vectors-XXXXXX";
    TemporaryFile made;
    made.descriptor = made.given = ::mkstemp(name);
    if (made.descriptor < 0) fail("a temporary file cannot be made");
    if (step.option("access")) made.given = ::open(name, O_RDONLY);
    ::unlink(name);
    const auto list = bytes(step.argument(0));
    if (::pwrite(made.descriptor, list.data(), list.size(), 0) != static_cast<ssize_t>(list.size()))
      fail("the file cannot be written");
    return keep(step, GPUMEM_SUCCESS, std::move(made));
  }
  const TemporaryFile& file_of(const std::string& name) {
    const auto* found = std::get_if<TemporaryFile>(&objects_[name]);
    if (!found) fail("no such file: " + name);
    return *found;
  }
  gpumem_status expect_file(const Step& step) {
    const auto list = bytes(step.argument(1));
    std::vector<unsigned char> found(list.size() + 1);
    const ssize_t size = ::pread(file_of(step.argument(0)).descriptor, found.data(), found.size(), 0);
    found.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    if (found != list) fail("the file differs");
    return GPUMEM_SUCCESS;
  }
  gpumem_status copy_file(const Step& step) {
    gpumem_copy_file_desc desc = GPUMEM_COPY_FILE_DESC_INIT;
    desc.direction =
        step.operation == "read_file" ? GPUMEM_FILE_DIRECTION_TO_MEMORY : GPUMEM_FILE_DIRECTION_FROM_MEMORY;
    desc.pointer = address(step.argument(1));
    desc.file_descriptor = file_of(step.argument(2)).given;
    desc.file_offset = step.value("offset");
    desc.size = step.value("size");
    if (step.option("cancel")) desc.progress = [](void*, uint64_t, uint64_t) -> int32_t { return 1; };
    gpumem_copy_file_info done = GPUMEM_COPY_FILE_INFO_INIT;
    const gpumem_status status =
        gpumem_copy_file(get<gpumem_instance>(step.argument(0)), &desc, &done, &error_);
    if (step.option("copied")) same("copied", step.value("copied"), done.copied);
    return status;
  }

  gpumem_status growable(const Step& step) {
    gpumem_buffer_desc desc = GPUMEM_BUFFER_DESC_INIT;
    desc.size = step.value("size");
    desc.reserve = step.value("reserve");
    desc.flags = step.sum("flags", kBufferFlags);
    desc.handle_types = step.sum("handle_types", kHandleTypes);
    if (const std::string* name = step.option("name")) desc.name = name->c_str();
    if (const std::string* group = step.option("group")) desc.group = get<gpumem_group>(*group);
    if (const std::string* tag = step.option("tag")) desc.tag = tag->c_str();
    gpumem_buffer made = nullptr;
    const gpumem_status status =
        gpumem_buffer_create(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status group(const Step& step) {
    gpumem_group_desc desc = GPUMEM_GROUP_DESC_INIT;
    if (const std::string* name = step.option("name")) desc.name = name->c_str();
    gpumem_group made = nullptr;
    const gpumem_status status =
        gpumem_group_create(get<gpumem_instance>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status resize(const Step& step) {
    return gpumem_buffer_resize(get<gpumem_buffer>(step.argument(0)), number(step.argument(1)), &error_);
  }
  gpumem_status set_capacity(const Step& step) {
    return gpumem_buffer_set_capacity(get<gpumem_buffer>(step.argument(0)), number(step.argument(1)),
                                      &error_);
  }
  gpumem_status note(const Step& step) {
    uint64_t registration = 0;
    const gpumem_status status = gpumem_buffer_note_registration(
        get<gpumem_buffer>(step.argument(0)), step.argument(1).c_str(), &registration, &error_);
    return keep(step, status, registration);
  }
  gpumem_status forget(const Step& step) {
    return gpumem_buffer_forget_registration(get<gpumem_buffer>(step.argument(0)),
                                             get<uint64_t>(step.argument(1)), &error_);
  }
  // Of a buffer, or of the buffers of a group.
  gpumem_status sleep(const Step& step) {
    gpumem_sleep_desc desc = GPUMEM_SLEEP_DESC_INIT;
    desc.content = static_cast<gpumem_content>(step.value("content", kContents));
    if (const std::string* directory = step.option("directory")) desc.directory = directory->c_str();
    if (const std::string* tag = step.option("tag")) desc.tag = tag->c_str();
    if (const auto* group = std::get_if<gpumem_group>(&objects_[step.argument(0)]))
      return gpumem_group_sleep(*group, &desc, &error_);
    return gpumem_buffer_sleep(get<gpumem_buffer>(step.argument(0)), &desc, &error_);
  }
  gpumem_status wake(const Step& step) {
    gpumem_wake_desc desc = GPUMEM_WAKE_DESC_INIT;
    desc.keep = step.value("keep");
    if (const std::string* tag = step.option("tag")) desc.tag = tag->c_str();
    if (const auto* group = std::get_if<gpumem_group>(&objects_[step.argument(0)]))
      return gpumem_group_wake(*group, &desc, &error_);
    return gpumem_buffer_wake(get<gpumem_buffer>(step.argument(0)), &desc, &error_);
  }
  gpumem_status prepare(const Step& step) {
    gpumem_prepare_desc desc = GPUMEM_PREPARE_DESC_INIT;
    desc.content = static_cast<gpumem_content>(step.value("content", kContents));
    if (const std::string* directory = step.option("directory")) desc.directory = directory->c_str();
    if (const std::string* tag = step.option("tag")) desc.tag = tag->c_str();
    if (const auto* group = std::get_if<gpumem_group>(&objects_[step.argument(0)]))
      return gpumem_group_prepare(*group, &desc, &error_);
    return gpumem_buffer_prepare(get<gpumem_buffer>(step.argument(0)), &desc, &error_);
  }
  gpumem_status buffer_info(const Step& step) {
    const gpumem_buffer_info known = info_of(get<gpumem_buffer>(step.argument(0)));
    if (step.option("state")) same("state", step.value("state", kStates), static_cast<uint64_t>(known.state));
    if (step.option("size")) same("size", step.value("size"), known.size);
    if (step.option("generation")) same("generation", step.value("generation"), known.generation);
    if (step.option("stored")) same("stored", step.value("stored"), known.stored_size);
    if (step.option("registrations")) same("registrations", step.value("registrations"), known.registrations);
    if (const std::string* name = step.option("name")) same("name", *name, known.name);
    if (const std::string* tag = step.option("tag")) same("tag", *tag, known.tag);
    return GPUMEM_SUCCESS;
  }
  gpumem_status group_info(const Step& step) {
    const std::string* const tag = step.option("tag");
    gpumem_group_info known = GPUMEM_GROUP_INFO_INIT;
    const gpumem_status status = gpumem_group_get_info(get<gpumem_group>(step.argument(0)),
                                                       tag ? tag->c_str() : nullptr, &known, &error_);
    if (status != GPUMEM_SUCCESS) return status;
    if (step.option("buffers")) same("buffers", step.value("buffers"), known.buffer_count);
    if (step.option("awake")) same("awake", step.value("awake"), known.awake_count);
    if (step.option("asleep")) same("asleep", step.value("asleep"), known.asleep_count);
    if (step.option("size")) same("size", step.value("size"), known.size);
    if (step.option("stored")) same("stored", step.value("stored"), known.stored_size);
    return status;
  }

  gpumem_status stream(const Step& step) {
    gpumem_stream_desc desc = GPUMEM_STREAM_DESC_INIT;
    desc.priority = static_cast<int32_t>(step.value("priority"));
    gpumem_stream made = nullptr;
    const gpumem_status status =
        gpumem_stream_create(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status event(const Step& step) {
    gpumem_event_desc desc = GPUMEM_EVENT_DESC_INIT;
    desc.flags = static_cast<gpumem_event_flags>(step.sum("flags", kEventFlags));
    gpumem_event made = nullptr;
    const gpumem_status status =
        gpumem_event_create(get<gpumem_device>(step.argument(0)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status destroy(const Step& step) {
    const Object& object = objects_[step.argument(0)];
    if (const auto* memory = std::get_if<gpumem_memory>(&object))
      return gpumem_memory_destroy(*memory, &error_);
    if (const auto* stream = std::get_if<gpumem_stream>(&object))
      return gpumem_stream_destroy(*stream, &error_);
    if (const auto* buffer = std::get_if<gpumem_buffer>(&object))
      return gpumem_buffer_destroy(*buffer, &error_);
    if (const auto* group = std::get_if<gpumem_group>(&object)) return gpumem_group_destroy(*group, &error_);
    if (const auto* pool = std::get_if<gpumem_pool>(&object)) return gpumem_pool_destroy(*pool, &error_);
    return gpumem_event_destroy(get<gpumem_event>(step.argument(0)), &error_);
  }
  gpumem_status record(const Step& step) {
    return gpumem_event_record(get<gpumem_event>(step.argument(0)), get<gpumem_stream>(step.argument(1)),
                               &error_);
  }
  gpumem_status wait(const Step& step) {
    return gpumem_stream_wait_event(get<gpumem_stream>(step.argument(0)), get<gpumem_event>(step.argument(1)),
                                    &error_);
  }
  gpumem_status query(const Step& step) {
    if (const auto* stream = std::get_if<gpumem_stream>(&objects_[step.argument(0)]))
      return gpumem_stream_query(*stream, &error_);
    return gpumem_event_query(get<gpumem_event>(step.argument(0)), &error_);
  }
  gpumem_status synchronize(const Step& step) {
    const uint64_t timeout = step.value("timeout", GPUMEM_TIMEOUT_INFINITE);
    if (const auto* stream = std::get_if<gpumem_stream>(&objects_[step.argument(0)]))
      return gpumem_stream_synchronize(*stream, timeout, &error_);
    return gpumem_event_synchronize(get<gpumem_event>(step.argument(0)), timeout, &error_);
  }
  gpumem_status elapsed(const Step& step) {
    int64_t nanoseconds = -1;
    const gpumem_status status = gpumem_event_get_elapsed_time(
        get<gpumem_event>(step.argument(0)), get<gpumem_event>(step.argument(1)), &nanoseconds, &error_);
    if (status == GPUMEM_SUCCESS && nanoseconds < 0) fail("the time is negative");
    return status;
  }

  gpumem_status copy(const Step& step) {
    gpumem_copy_options options = GPUMEM_COPY_OPTIONS_INIT;
    options.direction = static_cast<gpumem_direction>(step.value("direction"));
    options.source_order = static_cast<gpumem_source_order>(step.value("source_order"));
    std::byte* const to = address(step.argument(1));
    std::byte* const from = address(step.argument(2));
    const uint64_t size = step.value("size");
    if (const gpumem_stream stream = stream_of(step))
      return gpumem_copy_async(stream, to, from, size, &options, &error_);
    return gpumem_copy(get<gpumem_instance>(step.argument(0)), to, from, size, &options, &error_);
  }
  gpumem_status copy_2d(const Step& step) {
    std::byte* const to = address(step.argument(1));
    std::byte* const from = address(step.argument(2));
    const uint64_t dpitch = step.value("dpitch"), spitch = step.value("spitch");
    const uint64_t width = step.value("width"), height = step.value("height");
    if (const gpumem_stream stream = stream_of(step))
      return gpumem_copy_2d_async(stream, to, dpitch, from, spitch, width, height, nullptr, &error_);
    return gpumem_copy_2d(get<gpumem_instance>(step.argument(0)), to, dpitch, from, spitch, width, height,
                          nullptr, &error_);
  }
  gpumem_status fill(const Step& step) {
    std::byte* const to = address(step.argument(1));
    const uint64_t size = step.value("size");
    const auto value = static_cast<uint32_t>(step.value("value"));
    const auto width = static_cast<uint32_t>(step.value("width"));
    if (const gpumem_stream stream = stream_of(step))
      return gpumem_fill_async(stream, to, size, value, width, &error_);
    return gpumem_fill(get<gpumem_instance>(step.argument(0)), to, size, value, width, &error_);
  }
  gpumem_status fill_2d(const Step& step) {
    std::byte* const to = address(step.argument(1));
    const uint64_t pitch = step.value("pitch"), size_x = step.value("size_x"), size_y = step.value("size_y");
    const auto value = static_cast<uint32_t>(step.value("value"));
    const auto width = static_cast<uint32_t>(step.value("width"));
    if (const gpumem_stream stream = stream_of(step))
      return gpumem_fill_2d_async(stream, to, pitch, size_x, size_y, value, width, &error_);
    return gpumem_fill_2d(get<gpumem_instance>(step.argument(0)), to, pitch, size_x, size_y, value, width,
                          &error_);
  }

  // `@m+N` is the memory m and an offset, all else an address.
  gpumem_copy_operand operand(const std::string& text) {
    gpumem_copy_operand side{};
    if (!text.starts_with('@')) {
      side.pointer = address(text);
      return side;
    }
    const size_t plus = text.find('+');
    side.memory = get<gpumem_memory>(text.substr(1, plus == std::string::npos ? plus : plus - 1));
    if (plus != std::string::npos) side.offset = number(text.substr(plus + 1));
    return side;
  }
  gpumem_status copy_regions(const Step& step) {
    gpumem_copy_region region = GPUMEM_COPY_REGION_INIT;
    region.destination = operand(step.argument(1));
    region.destination.row_pitch = step.value("dpitch");
    region.destination.slice_pitch = step.value("dslice");
    region.source = operand(step.argument(2));
    region.source.row_pitch = step.value("spitch");
    region.source.slice_pitch = step.value("sslice");
    region.width = step.value("width");
    region.height = step.value("height");
    region.depth = step.value("depth");
    region.direction = static_cast<gpumem_direction>(step.value("direction"));
    region.source_order = static_cast<gpumem_source_order>(step.value("source_order"));
    std::vector<gpumem_copy_region> regions;
    for (uint64_t i = 0; i < step.value("count", 1); ++i) {
      regions.push_back(region);
      for (gpumem_copy_operand* side : {&region.destination, &region.source}) {
        if (side->memory != nullptr)
          side->offset += step.value("step");
        else if (side->pointer != nullptr)
          side->pointer = static_cast<std::byte*>(side->pointer) + step.value("step");
      }
    }
    uint64_t failed = UINT64_MAX;
    const gpumem_stream stream = stream_of(step);
    const gpumem_status status =
        stream ? gpumem_copy_regions_async(stream, regions.data(), regions.size(), &failed, &error_)
               : gpumem_copy_regions(get<gpumem_instance>(step.argument(0)), regions.data(), regions.size(),
                                     &failed, &error_);
    same("failed", step.value("failed", UINT64_MAX), failed);
    return status;
  }
  gpumem_status write_value(const Step& step) {
    return gpumem_stream_write_value(get<gpumem_stream>(step.argument(0)), address(step.argument(1)),
                                     step.value("value"), static_cast<uint32_t>(step.value("size")), &error_);
  }
  gpumem_status wait_value(const Step& step) {
    return gpumem_stream_wait_value(get<gpumem_stream>(step.argument(0)), address(step.argument(1)),
                                    step.value("value"), static_cast<uint32_t>(step.value("size")),
                                    static_cast<gpumem_wait_condition>(step.value("condition", kConditions)),
                                    &error_);
  }

  static std::vector<unsigned char> bytes(const std::string& hex) {
    std::vector<unsigned char> list;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
      list.push_back(static_cast<unsigned char>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    return list;
  }
  gpumem_status set(const Step& step) {
    const auto list = bytes(step.argument(1));
    std::byte* const place = address(step.argument(0));
    uint32_t word = 0;
    if (list.size() == sizeof word) {
      // A stream may be waiting for this one.
      std::memcpy(&word, list.data(), sizeof word);
      std::atomic_ref(*reinterpret_cast<uint32_t*>(place)).store(word);
    } else {
      std::memcpy(place, list.data(), list.size());
    }
    return GPUMEM_SUCCESS;
  }
  gpumem_status expect(const Step& step) {
    const auto list = bytes(step.argument(1));
    if (std::memcmp(address(step.argument(0)), list.data(), list.size()) != 0) fail("the content differs");
    return GPUMEM_SUCCESS;
  }

  gpumem_status info(const Step& step) {
    const gpumem_memory_info known = info_of(get<gpumem_memory>(step.argument(0)));
    if (step.option("kind")) same("kind", step.value("kind", kKinds), static_cast<uint64_t>(known.kind));
    if (step.option("size")) same("size", step.value("size"), known.size);
    if (step.option("alignment")) same("alignment", step.value("alignment"), known.alignment);
    if (step.option("name")) same("name", *step.option("name"), known.name);
    const uint64_t granted = step.sum("granted", kMemoryFlags);
    same("granted", granted, known.granted_flags & granted);
    return GPUMEM_SUCCESS;
  }
  gpumem_status pointer(const Step& step) {
    gpumem_pointer_info known = GPUMEM_POINTER_INFO_INIT;
    std::byte* const asked = address(step.argument(1));
    const gpumem_status status =
        gpumem_pointer_get_info(get<gpumem_instance>(step.argument(0)), asked, &known, &error_);
    if (GPUMEM_FAILED(status)) return status;
    if (step.option("kind")) same("kind", step.value("kind", kKinds), static_cast<uint64_t>(known.kind));
    if (step.option("size")) same("size", step.value("size"), known.size);
    if (step.option("offset"))
      same("offset", step.value("offset"),
           static_cast<uint64_t>(asked - static_cast<std::byte*>(known.base)));
    return status;
  }
  gpumem_status access(const Step& step) {
    gpumem_access known = GPUMEM_ACCESS_UNKNOWN;
    const bool of_device = step.option("device") != nullptr;
    const gpumem_status status = gpumem_pointer_get_access(
        get<gpumem_instance>(step.argument(0)), address(step.argument(1)),
        of_device ? GPUMEM_LOCATION_DEVICE : GPUMEM_LOCATION_HOST,
        of_device ? static_cast<int32_t>(step.value("device")) : -1, &known, &error_);
    if (status == GPUMEM_SUCCESS && step.option("is"))
      same("access", step.value("is", kAccess), static_cast<uint64_t>(known));
    return status;
  }
  gpumem_status count(const Step& step) {
    const gpumem_instance instance = get<gpumem_instance>(step.argument(0));
    gpumem_stats stats = GPUMEM_STATS_INIT;
    gpumem_status status = gpumem_stats_get(instance, &stats, &error_);
    std::map<std::string, uint64_t> counts{{"live", stats.live_count},
                                           {"bytes", stats.live_bytes},
                                           {"reserved", stats.reserved_bytes},
                                           {"streams", stats.streams},
                                           {"events", stats.events}};
    for (const auto& [name, text] : step.options) {
      if (kKinds.contains(name)) {
        gpumem_kind_stats of_kind = GPUMEM_KIND_STATS_INIT;
        status =
            gpumem_stats_get_kind(instance, static_cast<gpumem_kind>(kKinds.at(name)), &of_kind, &error_);
        if (GPUMEM_FAILED(status)) return status;
        counts[name] = of_kind.live_count;
      }
      same(name, number(text), counts.at(name));
    }
    return status;
  }
  gpumem_status capability(const Step& step) {
    gpumem_capability_info known = GPUMEM_CAPABILITY_INFO_INIT;
    return gpumem_device_get_capability(get<gpumem_device>(step.argument(0)),
                                        static_cast<gpumem_capability>(number(step.argument(1))), nullptr,
                                        &known, &error_);
  }
  gpumem_status peer(const Step& step) {
    const auto one = get<gpumem_device>(step.argument(0)), other = get<gpumem_device>(step.argument(1));
    uint32_t possible = 0;
    if (step.argument(2) == "query") return gpumem_device_can_access_peer(one, other, &possible, &error_);
    if (step.argument(2) == "enable") return gpumem_device_enable_peer_access(one, other, &error_);
    return gpumem_device_disable_peer_access(one, other, &error_);
  }

  gpumem_status export_memory(const Step& step) {
    gpumem_export_desc desc = GPUMEM_EXPORT_DESC_INIT;
    desc.way = static_cast<gpumem_share_way>(step.value("way", kWays));
    desc.access = static_cast<gpumem_access>(step.value("access", kAccess));
    desc.flags = step.sum("flags", kExportFlags);
    gpumem_share_handle made{};
    const gpumem_status status = gpumem_share_export(get<gpumem_instance>(step.argument(0)),
                                                     address(step.argument(1)), &desc, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status export_event(const Step& step) {
    gpumem_share_handle made{};
    const gpumem_status status = gpumem_event_export(get<gpumem_event>(step.argument(0)), &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status handle(const Step& step) { return keep(step, GPUMEM_SUCCESS, gpumem_share_handle{}); }
  gpumem_status damage(const Step& step) {
    gpumem_share_handle damaged = get<gpumem_share_handle>(step.argument(0));
    uint8_t& byte = damaged.bytes[number(step.argument(1)) % sizeof damaged.bytes];
    byte = static_cast<uint8_t>(~byte);
    objects_[step.argument(0)] = damaged;
    return GPUMEM_SUCCESS;
  }
  gpumem_status same_handles(const Step& step) {
    const auto one = get<gpumem_share_handle>(step.argument(0));
    const auto other = get<gpumem_share_handle>(step.argument(1));
    if (std::memcmp(one.bytes, other.bytes, sizeof one.bytes) != 0) fail("the handles differ");
    return GPUMEM_SUCCESS;
  }
  gpumem_status share_info(const Step& step) {
    const auto read = get<gpumem_share_handle>(step.argument(0));
    gpumem_share_info known = GPUMEM_SHARE_INFO_INIT;
    const gpumem_status status = gpumem_share_get_info(&read, &known, &error_);
    if (GPUMEM_FAILED(status)) return status;
    if (step.option("type")) same("type", step.value("type", kShareTypes), static_cast<uint64_t>(known.type));
    if (step.option("way")) same("way", step.value("way", kWays), static_cast<uint64_t>(known.way));
    if (step.option("access"))
      same("access", step.value("access", kAccess), static_cast<uint64_t>(known.access));
    if (step.option("size")) same("size", step.value("size"), known.size);
    if (step.option("offset")) same("offset", step.value("offset"), known.offset);
    if (step.option("descriptors")) same("descriptors", step.value("descriptors"), known.fd_count);
    return status;
  }
  gpumem_status descriptors(const Step& step) {
    const auto exported = get<gpumem_share_handle>(step.argument(1));
    const auto instance = get<gpumem_instance>(step.argument(0));
    uint32_t count = 0;
    gpumem_status status = gpumem_share_get_fds(instance, &exported, nullptr, 0, &count, &error_);
    if (GPUMEM_FAILED(status)) return status;
    same("descriptors", number(step.argument(2)), count);
    std::vector<int32_t> fds(count, -1);
    if (count != 0) status = gpumem_share_get_fds(instance, &exported, fds.data(), count, &count, &error_);
    for (const int32_t fd : fds)
      if (status == GPUMEM_SUCCESS && ::close(fd) != 0) fail("a descriptor is not open");
    return status;
  }
  gpumem_status revoke(const Step& step) {
    const auto exported = get<gpumem_share_handle>(step.argument(1));
    return gpumem_share_revoke(get<gpumem_instance>(step.argument(0)), &exported, &error_);
  }
  gpumem_status import_memory(const Step& step) {
    const auto exported = get<gpumem_share_handle>(step.argument(1));
    gpumem_import_desc desc = GPUMEM_IMPORT_DESC_INIT;
    desc.access = static_cast<gpumem_access>(step.value("access", kAccess));
    gpumem_memory made = nullptr;
    const gpumem_status status = gpumem_share_import(get<gpumem_instance>(step.argument(0)), &exported,
                                                     nullptr, 0, &desc, nullptr, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status import_event(const Step& step) {
    const auto exported = get<gpumem_share_handle>(step.argument(1));
    gpumem_event made = nullptr;
    const gpumem_status status =
        gpumem_event_import(get<gpumem_device>(step.argument(0)), &exported, nullptr, 0, &made, &error_);
    return keep(step, status, made);
  }
  gpumem_status way(const Step& step) {
    gpumem_way_info known = GPUMEM_WAY_INFO_INIT;
    const gpumem_status status = gpumem_share_get_way(
        get<gpumem_instance>(step.argument(0)), address(step.argument(1)),
        static_cast<gpumem_share_way>(named(kWays, step.argument(2))),
        static_cast<gpumem_share_peer>(named(kPeers, step.argument(3))), &known, &error_);
    if (GPUMEM_FAILED(status)) return status;
    if (const std::string* expected = step.option("is")) {
      const std::string name = gpumem_status_name(known.status);
      if (name != "GPUMEM_" + *expected) same("the way", "GPUMEM_ERROR_" + *expected, name);
    }
    if (step.option("descriptors")) same("descriptors", step.value("descriptors"), known.fd_count);
    if (GPUMEM_FAILED(known.status) && !known.message[0]) fail("the way has no reason");
    return status;
  }
  gpumem_status cache(const Step& step) {
    gpumem_import_cache_desc desc = GPUMEM_IMPORT_CACHE_DESC_INIT;
    desc.idle_ns = step.value("idle");
    desc.bytes_max = step.value("bytes");
    return gpumem_share_set_cache(get<gpumem_instance>(step.argument(0)),
                                  step.options.empty() ? nullptr : &desc, &error_);
  }
  gpumem_status flush_cache(const Step& step) {
    return gpumem_share_flush_cache(get<gpumem_instance>(step.argument(0)), &error_);
  }
  gpumem_status status_name(const Step& step) {
    same("name", step.argument(1),
         required(gpumem_status_name(static_cast<gpumem_status>(number(step.argument(0))))));
    return GPUMEM_SUCCESS;
  }

  gpumem_backend backend_;
  gpumem_error error_{};
  // Buffers are freed after the instances that registered them are closed.
  std::map<std::string, Object> objects_;
  std::vector<gpumem_instance> open_;
};

// The lines of one case and where they stand.
struct Text {
  std::string name;
  std::vector<std::pair<int, std::string>> lines;
};

std::vector<Text> read(const char* path) {
  std::ifstream file(path);
  if (!file) fail(std::string("cannot read ") + path);
  std::vector<Text> cases;
  int line_number = 0;
  for (std::string line; std::getline(file, line);) {
    ++line_number;
    if (line.empty() || line[0] == '#') continue;
    if (line.starts_with("case "))
      cases.push_back({line.substr(5), {}});
    else
      cases.at(cases.size() - 1).lines.emplace_back(line_number, line);
  }
  return cases;
}

std::string run(const Text& text, gpumem_backend backend) {
  Case state(backend);
  for (const auto& [line_number, line] : text.lines) {
    try {
      const Step step(line);
      if (step.operation == "only") {
        if (named(kBackends, step.argument(0)) != static_cast<uint64_t>(backend)) break;
        continue;
      }
      state.run(step);
    } catch (const std::exception& problem) {
      return "line " + std::to_string(line_number) + ": " + line + ": " + problem.what();
    }
  }
  return {};
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: vectors FILE host|cuda\n");
    return 2;
  }
  const auto backend = static_cast<gpumem_backend>(named(kBackends, arguments[2]));
  const auto cases = read(arguments[1]);
  int failures = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string problem = run(cases[i], backend);
    if (!problem.empty()) {
      ++failures;
      std::printf("# %s\n", problem.c_str());
    }
    std::printf("%s %zu - %s\n", problem.empty() ? "ok" : "not ok", i + 1, cases[i].name.c_str());
  }
  std::printf("1..%zu\n", cases.size());
  return failures != 0 || cases.empty();
}
