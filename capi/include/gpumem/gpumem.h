/* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception */
/** \file gpumem.h
 * Includes the whole interface.
 */
#ifndef GPUMEM_GPUMEM_H
#define GPUMEM_GPUMEM_H

#include "base.h"
#include "buffer.h"
#include "capability.h"
#include "copy.h"
#include "cuda.h"
#include "device.h"
#include "event.h"
#include "file.h"
#include "group.h"
#include "host.h"
#include "hub.h"
#include "instance.h"
#include "log.h"
#include "managed.h"
#include "memory.h"
#include "physical.h"
#include "pointer.h"
#include "pool.h"
#include "range.h"
#include "ring.h"
#include "share.h"
#include "stats.h"
#include "status.h"
#include "stream.h"
#include "table.h"
#include "version.h"

#endif
