// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "decoder.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "gpumem/memory.h"
#include "gpumem/pointer.h"
#include "gpumem/share.h"

namespace gpumem::capi {

void Decoder::refuse(const char* format, ...) {
  Error error;
  error.status = GPUMEM_ERROR_INVALID_ARGUMENT;
  va_list arguments;
  va_start(arguments, format);
  int before = 0;
  if (part_ != nullptr && index_ == kWhole) {
    before = std::snprintf(error.message, sizeof error.message, "%s: ", part_);
  } else if (part_ != nullptr) {
    before = std::snprintf(error.message, sizeof error.message, "%s[%llu]: ", part_,
                           static_cast<unsigned long long>(index_));
  }
  format_text(error.message + before, sizeof error.message - static_cast<size_t>(before), format, arguments);
  va_end(arguments);
  verdict_.note(error);
}

namespace {

struct Named {
  int32_t value;
  const char* name;
};
#define GPUMEM_NAMED(value) \
  Named { value, #value }
constexpr Named kNames[] = {
    GPUMEM_NAMED(GPUMEM_KIND_UNKNOWN),       GPUMEM_NAMED(GPUMEM_KIND_PAGEABLE),
    GPUMEM_NAMED(GPUMEM_KIND_PINNED),        GPUMEM_NAMED(GPUMEM_KIND_REGISTERED),
    GPUMEM_NAMED(GPUMEM_KIND_DEVICE),        GPUMEM_NAMED(GPUMEM_KIND_MANAGED),
    GPUMEM_NAMED(GPUMEM_KIND_POOL),          GPUMEM_NAMED(GPUMEM_KIND_VIRTUAL),
    GPUMEM_NAMED(GPUMEM_KIND_IMPORTED),      GPUMEM_NAMED(GPUMEM_KIND_FOREIGN),
    GPUMEM_NAMED(GPUMEM_LOCATION_NONE),      GPUMEM_NAMED(GPUMEM_LOCATION_DEVICE),
    GPUMEM_NAMED(GPUMEM_LOCATION_HOST),      GPUMEM_NAMED(GPUMEM_LOCATION_HOST_NUMA),
    GPUMEM_NAMED(GPUMEM_ACCESS_NONE),        GPUMEM_NAMED(GPUMEM_ACCESS_READ),
    GPUMEM_NAMED(GPUMEM_ACCESS_READWRITE),   GPUMEM_NAMED(GPUMEM_ACCESS_UNKNOWN),
    GPUMEM_NAMED(GPUMEM_SHARE_WAY_ANY),      GPUMEM_NAMED(GPUMEM_SHARE_WAY_LEGACY),
    GPUMEM_NAMED(GPUMEM_SHARE_WAY_POSIX_FD), GPUMEM_NAMED(GPUMEM_SHARE_WAY_FABRIC),
    GPUMEM_NAMED(GPUMEM_SHARE_WAY_DMA_BUF),  GPUMEM_NAMED(GPUMEM_LOCATION_HOST_NUMA_CURRENT)};
#undef GPUMEM_NAMED

}  // namespace

void Decoder::not_a_value(const char* what, const char* prefix, int32_t value, const char* allowed) {
  const char* const separator = allowed != nullptr ? "; it must be " : "";
  if (allowed == nullptr) allowed = "";
  for (const Named& known : kNames) {
    if (known.value == value && std::strncmp(known.name, prefix, std::strlen(prefix)) == 0)
      return refuse("%s is %s%s%s", what, known.name, separator, allowed);
  }
  refuse("%s is %d, which is not a %s value%s%s", what, value, prefix, separator, allowed);
}

std::string Decoder::name(const char* given) {
  constexpr size_t kRoom = 64;
  if (given == nullptr) return {};
  const size_t length = strnlen(given, kRoom);
  if (length >= kRoom) {
    refuse("the name is longer than %zu bytes; use a shorter one", kRoom - 1);
    return {};
  }
  const char* const control = std::find_if(given, given + length, is_control);
  if (control != given + length) {
    refuse("byte %td of the name is the control character 0x%02x; use a name that is one line of text",
           control - given, static_cast<unsigned char>(*control));
    return {};
  }
  return std::string(given, length);
}

core::Ref<core::Object> Decoder::find(uint64_t handle, core::Type type) {
  core::Ref<core::Object> found = core::acquire<core::Object>(record_, handle, type);
  if (!found) verdict_.note(core::handles::refusal(handle, type));
  return found;
}

bool Decoder::check_other_size(const void* given, size_t size, size_t known, size_t first, const char* name) {
  if (size < first || size > kStructSizeMax) {
    refuse(
        "%s->struct_size is %zu, which is not the size of any version; initialize the struct with its "
        "_INIT macro",
        name, size);
    return false;
  }
  const auto* bytes = static_cast<const unsigned char*>(given);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    refuse(
        "%s has a byte other than 0 at offset %zu, where this version has no field; set it to 0, or "
        "use a newer library",
        name, i);
    return false;
  }
  return true;
}

}  // namespace gpumem::capi
