// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/object.h"

#include <cstdarg>
#include <cstdio>

namespace gpumem::core {

Line line_of(const char* format, ...) noexcept {
  Line line;
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line.text, sizeof line.text, format, arguments);
  va_end(arguments);
  return line;
}

Line Object::describe() const { return line_of("%s", type_name(type_)); }

void Object::list(Fields& /*fields*/) const noexcept {}

Result<void> Object::release() { return {}; }

void Object::forget() noexcept {}

}  // namespace gpumem::core
