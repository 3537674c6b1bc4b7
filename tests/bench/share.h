// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Memory of a second process: imported, fetched by name, and copied through.
#pragma once

#include "groups.h"

namespace bench {

void share(const Scene& scene);
// The second process, which the first one starts with `--share-peer`.
int share_peer(gpumem_backend backend);

inline constexpr int kPeerSocket = 3;  // of a second process

// A second process with a socket to it. It ends when the socket is closed.
class SecondProcess {
 public:
  SecondProcess(const char* word, gpumem_backend backend);
  SecondProcess(const SecondProcess&) = delete;
  SecondProcess& operator=(const SecondProcess&) = delete;
  ~SecondProcess();
  int socket() const { return socket_; }

 private:
  int pid_ = -1;
  int socket_ = -1;
};

// All bytes, or a failure.
void transfer(int socket, void* bytes, size_t size, bool out);
// One descriptor with a byte; -1 is none.
void send_descriptor(int socket, int descriptor);
int receive_descriptor(int socket);

#define MUST(call)                          \
  do {                                      \
    gpumem_error error = GPUMEM_ERROR_INIT; \
    ::bench::must(call, error);             \
  } while (false)
void must(gpumem_status status, const gpumem_error& error);

}  // namespace bench
