// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "backends/cuda/pieces.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "platform/fork.h"

namespace gpumem::cuda {
namespace {

constexpr const char* kPiecesNotEnqueued = "the copies cannot be enqueued";
constexpr const char* kName = "gpumem_copy_pieces";
constexpr unsigned kThreads = 128;
constexpr uint64_t kBytesOfBlock = uint64_t{kThreads} * 16 * 2;
constexpr uint64_t kMostBlocks = 32;  // for a piece

// The parameter of the kernel.
struct Table {
  std::array<backend::Piece, 170> pieces;
};
static_assert(sizeof(Table) == 4080 && sizeof(backend::Piece) == 24);

// The blocks of column x copy piece x, each thread units of 16 bytes, of 4 or of 1, as the addresses and the
// size allow. PTX of the oldest version that every driver from 11.2 on knows, which it compiles for its
// device.
constexpr const char* kCode = R"(
.version 6.0
.target sm_50
.address_size 64

.visible .entry gpumem_copy_pieces(.param .align 8 .b8 table[4080])
{
  .reg .pred %done, %odd;
  .reg .u16 %byte;
  .reg .u32 %word, %number, %width, %part;
  .reg .u32 %a, %b, %c, %d;
  .reg .u64 %piece, %to, %from, %size, %bits, %at, %step, %source, %target;

  mov.u32 %number, %ctaid.x;
  mov.u64 %piece, table;
  mad.wide.u32 %piece, %number, 24, %piece;
  ld.param.u64 %to, [%piece];
  ld.param.u64 %from, [%piece+8];
  ld.param.u64 %size, [%piece+16];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;

  // This thread's place in the row of all threads of the piece, and how many they are.
  mov.u32 %width, %ntid.x;
  mov.u32 %part, %ctaid.y;
  mov.u32 %number, %tid.x;
  mad.lo.u32 %number, %part, %width, %number;
  cvt.u64.u32 %at, %number;
  mov.u32 %part, %nctaid.y;
  mul.wide.u32 %step, %part, %width;

  or.b64 %bits, %to, %from;
  or.b64 %bits, %bits, %size;
  and.b64 %source, %bits, 15;
  setp.eq.u64 %odd, %source, 0;
  @%odd bra by_16;
  and.b64 %source, %bits, 3;
  setp.eq.u64 %odd, %source, 0;
  @%odd bra by_4;

by_1:
  setp.ge.u64 %done, %at, %size;
  @%done ret;
  add.u64 %source, %from, %at;
  add.u64 %target, %to, %at;
  ld.global.u8 %byte, [%source];
  st.global.u8 [%target], %byte;
  add.u64 %at, %at, %step;
  bra by_1;

by_4:
  shl.b64 %at, %at, 2;
  shl.b64 %step, %step, 2;
next_4:
  setp.ge.u64 %done, %at, %size;
  @%done ret;
  add.u64 %source, %from, %at;
  add.u64 %target, %to, %at;
  ld.global.u32 %word, [%source];
  st.global.u32 [%target], %word;
  add.u64 %at, %at, %step;
  bra next_4;

by_16:
  shl.b64 %at, %at, 4;
  shl.b64 %step, %step, 4;
next_16:
  setp.ge.u64 %done, %at, %size;
  @%done ret;
  add.u64 %source, %from, %at;
  add.u64 %target, %to, %at;
  ld.global.v4.u32 {%a, %b, %c, %d}, [%source];
  st.global.v4.u32 [%target], {%a, %b, %c, %d};
  add.u64 %at, %at, %step;
  bra next_16;
}
)";

// Of a context that instances have open. The module ends with the context: to unload it would wait for all
// work there, as loading does (measured: docs/measured/copies.md).
struct Kernel {
  CUfunction function = nullptr;
  uint32_t users = 0;  // instances
};

struct Kernels {
  std::mutex mutex;
  std::map<CUcontext, Kernel> by_context;
};

constinit platform::PerProcess<Kernels> kernels;

// False where the driver cannot, such as one without its compiler.
bool load(Device& device, Kernel* out) {
  RelaxedScope scope(device);
  if (!scope.entered()) return false;
  CUmodule module = nullptr;
  return device.cu().ModuleLoadData(&module, kCode).ok() &&
         device.cu().ModuleGetFunction(&out->function, module, kName).ok();
}

}  // namespace

void Pieces::open(bool fresh) {
  Kernels& all = kernels.get();
  const std::lock_guard lock(all.mutex);
  auto known = all.by_context.find(device_.context());
  if (known == all.by_context.end()) {
    if (!fresh) return;
    known = all.by_context.emplace(device_.context(), Kernel()).first;
    if (!load(device_, &known->second)) {
      all.by_context.erase(known);
      return;
    }
  }
  ++known->second.users;
  kernel_ = known->second.function;
}

void Pieces::close() {
  if (kernel_ == nullptr) return;
  Kernels& all = kernels.get();
  const std::lock_guard lock(all.mutex);
  const auto known = all.by_context.find(device_.context());
  if (--known->second.users == 0) all.by_context.erase(known);
}

Pieces::Way Pieces::way() const {
  if (kernel_ != nullptr) return Way::kKernel;
  const Driver& cu = device_.cu();
  return cu.MemcpyBatchAsync.function != nullptr || cu.MemcpyBatchIndexAsync.function != nullptr
             ? Way::kBatch
             : Way::kOneByOne;
}

Result<void> Pieces::copy(CUstream stream, bool captured, std::span<const backend::Piece> pieces,
                          size_t* done) {
  Way way = pieces.size() < kFew ? Way::kOneByOne : this->way();
  if (captured && way == Way::kBatch) way = Way::kOneByOne;  // no graph can hold it (measured)
  const size_t most = way == Way::kKernel ? kLaunch : way == Way::kBatch ? kBatch : 1;
  const Scope scope(device_);
  GPUMEM_TRY(device_.check_enqueued(scope.outcome(), kPiecesNotEnqueued));
  for (*done = 0; *done < pieces.size(); *done = std::min(*done + most, pieces.size())) {
    const auto some = pieces.subspan(*done, std::min(most, pieces.size() - *done));
    const backend::Piece& first = some.front();
    GPUMEM_TRY(device_.check_enqueued(
        way == Way::kKernel  ? launch(stream, some)
        : way == Way::kBatch ? batch(stream, some)
                             : device_.cu().MemcpyAsync(first.to, first.from, first.size, stream),
        kPiecesNotEnqueued));
  }
  return {};
}

Outcome Pieces::batch(CUstream stream, std::span<const backend::Piece> pieces) {
  CUdeviceptr to[kBatch];
  CUdeviceptr from[kBatch];
  size_t sizes[kBatch];
  for (size_t i = 0; i < pieces.size(); ++i) {
    to[i] = pieces[i].to;
    from[i] = pieces[i].from;
    sizes[i] = pieces[i].size;
  }
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first = 0;
  const Driver& cu = device_.cu();
  if (cu.MemcpyBatchAsync.function != nullptr)
    return cu.MemcpyBatchAsync(to, from, sizes, pieces.size(), &attributes, &first, 1, stream);
  size_t failed = 0;
  return cu.MemcpyBatchIndexAsync(to, from, sizes, pieces.size(), &attributes, &first, 1, &failed, stream);
}

Outcome Pieces::launch(CUstream stream, std::span<const backend::Piece> pieces) {
  Table table;
  std::memcpy(table.pieces.data(), pieces.data(), pieces.size_bytes());
  uint64_t largest = 0;
  for (const backend::Piece& piece : pieces)
    largest = std::max(largest, piece.size);
  const uint64_t blocks = std::clamp<uint64_t>((largest - 1) / kBytesOfBlock + 1, 1, kMostBlocks);
  void* parameters[] = {&table};
  return device_.cu().LaunchKernel(kernel_, static_cast<unsigned>(pieces.size()),
                                   static_cast<unsigned>(blocks), 1, kThreads, 1, 1, 0, stream, parameters,
                                   nullptr);
}

}  // namespace gpumem::cuda
