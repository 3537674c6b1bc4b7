/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file file.h
 * Copies between files and memory of any kind.
 *
 * Threads of the library read the file into page-locked memory while the device copies from there what has been read, and the
 * other way round. Memory that the CPU has in place is read into and written from directly. The threads and the memory are those
 * of large copies (see `transfer_threads` and `transfer_bytes` of gpumem_instance_desc); they are started when large files are
 * copied, sleep while there is nothing to do, and end soon.
 */
#ifndef GPUMEM_FILE_H
#define GPUMEM_FILE_H

#include "buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which way bytes go: one of the GPUMEM_FILE_DIRECTION_ values. */
typedef int32_t gpumem_file_direction;
#define GPUMEM_FILE_DIRECTION_TO_MEMORY 0   /**< The file is read. */
#define GPUMEM_FILE_DIRECTION_FROM_MEMORY 1 /**< The file is written, and becomes longer if it must. */

/** How to copy: a sum of GPUMEM_FILE_ values. */
typedef uint64_t gpumem_file_flags;
/** Past the system's page cache (O_DIRECT): for what is read or written once and is larger than memory. Files in the cache are
 * copied faster without it.
 *
 * The file is opened anew for the call, unless the descriptor has O_DIRECT already. When that is closed, the system drops the
 * record locks of the process on the file (`F_SETLK`, lockf). Locks by `F_OFD_SETLK` and flock stay: use those, or no flag. */
#define GPUMEM_FILE_DIRECT UINT64_C(0x1)

/** What to copy. */
typedef struct gpumem_copy_file_desc {
  size_t struct_size; /**< `sizeof(gpumem_copy_file_desc)` of the caller. */
  /** Descriptor of a file or block device. Set it: the initial value 0 is the standard input. The file position is neither used nor
   * changed, and without #GPUMEM_FILE_DIRECT the locks on the file stay. Do not close the descriptor during the call: another file
   * may get its number. If it was opened with O_DIRECT, offset and size must satisfy the file system's alignment: see
   * #GPUMEM_ERROR_INVALID_ARGUMENT at gpumem_copy_file(). */
  int32_t file_descriptor;
  gpumem_file_direction direction; /**< One of the GPUMEM_FILE_DIRECTION_ values. */
  uint64_t file_offset;            /**< First byte in the file. */
  void *pointer; /**< First byte in memory, by its host or device address; as an operand of gpumem_copy(). */
  uint64_t size; /**< Bytes; 0 succeeds and ignores the descriptor and the pointer. */
  /** A sum of GPUMEM_FILE_ values; gpumem_copy_file_info says what was possible. */
  gpumem_file_flags prefer;
  /** Progress and cancellation, or NULL. It is called before the first byte, after about each 64 MiB, and at the end; threads of
   * the library go on meanwhile, so that a call that is cancelled may have copied all. It counts bytes in any order, so its
   * `done`, which is also in the message of a cancelled call, may be more or less than `copied` in the answer. */
  gpumem_progress_function progress;
  void *user_data; /**< Passed to `progress`. */
} gpumem_copy_file_desc;

/** Initial value of a gpumem_copy_file_desc. */
#define GPUMEM_COPY_FILE_DESC_INIT \
  { sizeof(gpumem_copy_file_desc), 0, 0, 0, NULL, 0, 0, NULL, NULL }

/** What was copied. */
typedef struct gpumem_copy_file_info {
  size_t struct_size; /**< `sizeof(gpumem_copy_file_info)` of the caller. */
  /** Bytes from the start on that were copied, with no gap. After a failure or a cancellation a call for the others goes on from
   * there. */
  uint64_t copied;
  /** Bytes that bypassed the page cache, including those after a gap: after a failure it may be more than `copied`. With a descriptor
   * that was opened with O_DIRECT these are all, with or without #GPUMEM_FILE_DIRECT. */
  uint64_t direct;
} gpumem_copy_file_info;

/** Initial value of a gpumem_copy_file_info. */
#define GPUMEM_COPY_FILE_INFO_INIT \
  { sizeof(gpumem_copy_file_info), 0, 0 }

/** Copies bytes of a file to memory, or of memory to a file, and returns when they are copied.
 *
 * It is not ordered against any stream: work that it depends on must have been observed complete. The memory must stay valid until
 * it returns. gpumem_progress_function says what the progress function may do.
 *
 * If everything is checked and the copy then fails or is cancelled, any byte of the destination may have been written, and
 * `out_info` is. Nothing runs any more when the call returns. What was written is with the system, not yet on the disk: see fsync.
 *
 * \param instance instance that copies
 * \param desc what to copy
 * \param[out] out_info receives what was copied; also from a call that fails after it has begun. Or NULL
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the bytes are copied
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT NULL pointer, an unknown direction or flag, a size or an end in the file above 2^63-1, a
 *         range that leaves its object, a descriptor that is not open, or is of a pipe, a socket, a directory or a character
 *         device, or was opened with O_PATH or, to write, with O_APPEND; or the file is shorter, and the message says by how
 *         much. Once the call has begun: the descriptor was opened with O_DIRECT, and its file system does not take the offset,
 *         the size, or the address of memory that the CPU has in place (mostly it wants multiples of 512 or 4096): open the file
 *         without O_DIRECT and pass #GPUMEM_FILE_DIRECT; or the file can only be mapped, as those of memfd_secret and hugetlbfs
 * \retval GPUMEM_ERROR_NOT_FOUND there is no memory at the pointer
 * \retval GPUMEM_ERROR_NO_ACCESS the memory cannot be read or written, or the descriptor was not opened for it
 * \retval GPUMEM_ERROR_INVALID_STATE a page of registered or ordinary memory is not mapped, or not for this use; nothing is mapped
 *         in a part of a range; its buffer is asleep, or is being put to sleep or woken; the file was cut short or the descriptor
 *         closed meanwhile; the file has fewer bytes than its size says, as in /sys; or called from a host function
 * \retval GPUMEM_ERROR_LIMIT_EXCEEDED the disk or a quota is full, or the file reaches a limit
 * \retval GPUMEM_ERROR_PERMISSION_DENIED the system refuses to write the file: it is sealed, for example
 * \retval GPUMEM_ERROR_CANCELLED the progress function ended the call
 * \retval GPUMEM_ERROR_DEVICE_LOST the device is lost
 * \retval GPUMEM_ERROR_OUT_OF_HOST_MEMORY no memory to enqueue the copies
 * \retval GPUMEM_ERROR_INTERNAL the system could not read or write the file; the native code is attached
 * \handles
 * \blocking{until the bytes are copied}
 * \threads{any thread}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_copy_file(gpumem_instance instance, const gpumem_copy_file_desc *desc,
                                          gpumem_copy_file_info *out_info, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
