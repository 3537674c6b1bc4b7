/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file log.h
 * Where the library's messages go: nowhere, until a function is set.
 */
#ifndef GPUMEM_LOG_H
#define GPUMEM_LOG_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How much a message matters: one of the GPUMEM_LOG_ values. */
typedef int32_t gpumem_log_level;
#define GPUMEM_LOG_ERROR 1   /**< Something was lost, such as a free that the driver refused. */
#define GPUMEM_LOG_WARNING 2 /**< Something is probably not as intended, such as objects alive at close. */
#define GPUMEM_LOG_INFO 3    /**< What was found and chosen when a backend opened. */
#define GPUMEM_LOG_DEBUG 4   /**< Why a call failed, for each failing call. */

/** Receives one finished line, without a line end. It may be called from any thread, must not call gpumem and
 * must not throw. `message` is valid during the call only. */
typedef void(GPUMEM_CALL *gpumem_log_function)(void *user_data, gpumem_log_level level, const char *message);

/** Sets the function that receives messages, for the whole process. The library prints nothing by itself.
 *
 * When the call returns, the former function is not running and will not be called again. Messages that arise
 * while the call waits for it may be dropped.
 *
 * \param function receives the messages; NULL for none
 * \param user_data handed to `function` as it is
 * \param max_level the least important level that is still delivered
 * \param[out] error detail of a failure, or NULL
 * \retval GPUMEM_SUCCESS the function is in place
 * \retval GPUMEM_ERROR_INVALID_ARGUMENT `max_level` is not one of the GPUMEM_LOG_ values (only checked if
 *         `function` is not NULL)
 * \retval GPUMEM_ERROR_INVALID_STATE called from inside the log function
 * \blocking{until a message that is being delivered has returned}
 * \threads{any thread}
 * \owner{`user_data` stays the caller's and must live until the function is replaced}
 * \since 0.1 */
GPUMEM_API gpumem_status gpumem_log_set_function(gpumem_log_function function, void *user_data,
                                                 gpumem_log_level max_level, gpumem_error *error);

#ifdef __cplusplus
}
#endif

#endif
