// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem_fuzz_share: bytes of a coverage-guided fuzzer (libFuzzer) as what another process says. They are cut
// into packets, and these go through the decoder and what puts packets together.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "core/share/wire/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using namespace gpumem;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();  // tells the fuzzer to keep the input
}

// What is taken must not change when it is passed on.
void check(std::span<const uint8_t> packet) {
  auto message = core::decode_message(packet);
  if (!message) {
    require(message.error().status == GPUMEM_ERROR_INVALID_ARGUMENT ||
                message.error().status == GPUMEM_ERROR_UNSUPPORTED,
            "a refusal has another status");
    require(message.error().message[0] != '\0', "a refusal does not say why");
    return;
  }
  require(packet.size() <= core::kPacketMax, "more was taken than a packet holds");
  const std::vector<uint8_t> again = core::encode_message(*message);
  auto same = core::decode_message(again);
  require(same.ok(), "what was taken is not taken again");
  require(core::encode_message(*same) == again, "a message changes when it is passed on");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> left(data, size);
  core::Assembler assembler;
  bool ended = false;
  while (left.size() >= 3) {
    // Two bytes of length, and how many descriptors come along.
    const size_t wanted = (size_t{left[0]} | size_t{left[1]} << 8) % (core::kPacketMax + 2);
    const size_t count = left[2] % 4;
    left = left.subspan(3);
    const auto packet = left.first(std::min(wanted, left.size()));
    left = left.subspan(packet.size());
    check(packet);
    if (ended) continue;
    platform::Descriptors descriptors;
    for (size_t i = 0; i < count; ++i)
      descriptors.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
    auto whole = assembler.take(packet, std::move(descriptors), [](const core::Message&) { return 2U; });
    ended = !whole;
    require(assembler.descriptors() <= 2, "more descriptors are held than allowed");
    if (ended || !*whole) continue;
    const core::Incoming& incoming = **whole;
    require(assembler.open() == nullptr, "a whole message is still open");
    require(incoming.too_many ? incoming.descriptors.empty()
                              : incoming.descriptors.size() == incoming.message.descriptor_count,
            "a message has other descriptors than it announced");
  }
  return 0;
}
