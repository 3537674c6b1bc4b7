// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arguments of one call, right or wrong as the bytes of its step choose.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>

#include "gpumem/gpumem.h"
#include "step.h"

namespace sequences {

// Bytes from here on ask for something wrong.
inline constexpr uint8_t kWrong = 200;

// The bytes of a step, one after the other.
class Choice {
 public:
  explicit Choice(const Step& step) : step_(step) {}
  uint8_t byte() { return next_ < kValues ? step_.values.at(next_++) : uint8_t{0}; }
  // An entry of a list.
  template <class T, size_t N>
  T one_of(const T (&list)[N]) {
    return list[byte() % N];
  }
  // One of the right values, or of the wrong ones.
  template <class T, size_t N, size_t M>
  T value(const T (&right)[N], const T (&wrong)[M]) {
    const uint8_t choice = byte();
    return choice < kWrong ? right[choice % N] : wrong[(choice - kWrong) % M];
  }

 private:
  const Step& step_;
  size_t next_ = 0;
};

inline constexpr unsigned char kUntouched = 0x5A;

// A struct that begins with its size, as callers of this and of other versions give it.
template <class S>
class Sized {
 public:
  enum class Null { kGood, kBad };

  Sized(Choice& choice, const S& initial, Null null) {
    given_.known = initial;
    std::memset(given_.unknown, 0, sizeof given_.unknown);
    const uint8_t byte = choice.byte();
    if (byte < kWrong) return;
    switch (byte % 7) {
      case 0:
        is_null_ = true;
        good_ = null == Null::kGood;
        return;
      case 1:
        given_.known.struct_size = 0;
        good_ = false;
        return;
      case 2:
        given_.known.struct_size = sizeof(S) - 1;
        good_ = false;
        return;
      case 3:
        given_.known.struct_size = sizeof given_;
        return;
      case 4:
        given_.known.struct_size = sizeof given_;
        given_.unknown[byte % sizeof given_.unknown] = 1;
        good_ = false;
        return;
      case 5:
        given_.known.struct_size = SIZE_MAX;
        good_ = false;
        return;
      default:
        return;
    }
  }

  S* operator->() { return &given_.known; }
  const S& get() const { return given_.known; }
  S* pointer() { return is_null_ ? nullptr : &given_.known; }
  bool good() const { return good_; }
  bool is_null() const { return is_null_; }
  std::string text() const {
    if (is_null_) return "NULL";
    return good_ ? "{}" : "{wrong size " + std::to_string(given_.known.struct_size) + "}";
  }

 private:
  struct {
    S known;
    unsigned char unknown[64];
  } given_;
  bool is_null_ = false;
  bool good_ = true;
};

// A struct that receives an answer: filled with a pattern before, so that a failing call is seen to write it.
template <class S>
class Answer : public Sized<S> {
 public:
  explicit Answer(Choice& choice) : Sized<S>(choice, pattern(), Sized<S>::Null::kBad) {
    before_ = this->get();
  }
  bool untouched() const { return std::memcmp(&before_, &this->get(), sizeof before_) == 0; }

 private:
  static S pattern() {
    S value;
    std::memset(static_cast<void*>(&value), kUntouched, sizeof value);
    value.struct_size = sizeof value;
    return value;
  }
  S before_;
};

// A plain value that receives an answer.
template <class T>
class Out {
 public:
  enum class Null { kGood, kBad };

  explicit Out(Choice& choice, Null null = Null::kBad) {
    std::memset(static_cast<void*>(&value_), kUntouched, sizeof value_);
    before_ = value_;
    is_null_ = choice.byte() >= kWrong;
    good_ = !is_null_ || null == Null::kGood;
  }
  T* pointer() { return is_null_ ? nullptr : &value_; }
  const T& get() const { return value_; }
  bool good() const { return good_; }
  bool is_null() const { return is_null_; }
  bool untouched() const { return std::memcmp(&before_, &value_, sizeof value_) == 0; }
  const char* text() const { return is_null_ ? "NULL" : "&out"; }

 private:
  T value_;
  T before_;
  bool is_null_ = false;
  bool good_ = true;
};

}  // namespace sequences
