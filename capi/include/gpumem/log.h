/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file log.h
 * The log function, which receives the library's messages. Without one, the library logs nothing.
 */
#ifndef GPUMEM_LOG_H
#define GPUMEM_LOG_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Importance of a message: one of the GPUMEM_LOG_ values. */
typedef int32_t gpumem_log_level;
#define GPUMEM_LOG_ERROR 1 /**< Something was lost, such as memory that the driver refused to free. */
/** Something is probably not as intended, such as a fallback to the host backend, live objects at a close by
 * force, or an `error->struct_size` that is no size of a gpumem_error. */
#define GPUMEM_LOG_WARNING 2
#define GPUMEM_LOG_INFO 3  /**< What was found and chosen when a backend was opened. */
#define GPUMEM_LOG_DEBUG 4 /**< The reason of each failing call. */

/** Receives one message, a single line without a line end. It may be called from any thread. It must return:
 * it must not call gpumem, throw or end its thread. A child process that it forks may call gpumem, but must not return
 * from the function. `message` is valid during the call only. */
typedef void(GPUMEM_CALL *gpumem_log_function)(void *user_data, gpumem_log_level level, const char *message);

/** Sets the function that receives log messages, for the whole process.
 *
 * When the call returns, the previous function is not running and will not be called again. Messages that are
 * logged while the call waits for it may be dropped.
 *
 * \param function receives the messages; NULL for none
 * \param user_data passed to `function`
 * \param max_level the least important level to deliver
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the function is set
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `max_level` is not one of the GPUMEM_LOG_ values (checked only if
 *         `function` is not NULL)
 * \retval GPUMEM_ERROR_INVALID_STATE called from the log function
 * \blocking{until a message that is being delivered has returned}
 * \threads{any thread}
 * \owner{`user_data` belongs to the caller and must live until the function is replaced}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_log_set_function(gpumem_log_function function, void *user_data,
                                                 gpumem_log_level max_level, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
