// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Arguments of one call, right or wrong as the bytes of its step choose. Every bad argument that the tests
// pass is made here or from the lists of wrong values in the steps.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gpumem/gpumem.h"
#include "step.h"

namespace sequences {

// Bytes from here on ask for something wrong.
inline constexpr uint8_t kWrong = 200;

// The sorts of arguments that can be wrong in ways of their own, besides handles, which are named by their
// noun; and those ways. The sweep (sweep.cpp) requires each for every function.
inline constexpr const char* kInput = "input";    // a struct that the caller fills
inline constexpr const char* kAnswer = "answer";  // a struct that receives an answer
inline constexpr const char* kOutput = "output";  // a plain value that does
inline constexpr const char* kError = "error";
inline constexpr std::array kHandleFaults{"NULL", "forged", "of another type", "gone"};
inline constexpr std::array kStructFaults{"NULL", "size 0", "small", "huge", "newer", "unknown bytes"};
inline constexpr std::array kOutputFaults{"NULL"};
inline constexpr std::array kErrorFaults{"NULL", "size 0", "small", "huge", "newer"};

// The bytes of a step, one after the other.
class Choice {
 public:
  explicit Choice(const Step& step) : step_(step) {}
  uint8_t byte() {
    const uint8_t next = next_ < kValues ? step_.values.at(next_) : uint8_t{0};
    ++next_;
    if (next >= kWrong) ++wrong_;
    return next;
  }
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
  // Counts an argument of a sort, and says how it is wrong; null if it is not.
  void argument(const char* sort, const char* fault) {
    const auto number = std::count(sorts_.begin(), sorts_.end(), std::string_view(sort)) + 1;
    sorts_.emplace_back(sort);
    if (fault != nullptr) fault_ = fault_name(sort, number, fault);
  }
  static std::string fault_name(const char* sort, ptrdiff_t number, const char* fault) {
    return std::string(sort) + " " + std::to_string(number) + " " + fault;
  }

  size_t used() const { return next_; }
  // What is wrong with an argument, if nothing else is that was asked for.
  std::string only_fault() const { return wrong_ == 1 ? fault_ : std::string(); }

 private:
  const Step& step_;
  size_t next_ = 0;
  int wrong_ = 0;
  std::vector<std::string_view> sorts_;
  std::string fault_;
};

inline constexpr unsigned char kUntouched = 0x5A;

// A struct that begins with its size, as callers of this and of other versions give it.
template <class S>
class Sized {
 public:
  enum class Null { kGood, kBad };
  struct Newer {
    S known;
    unsigned char unknown[64];
  };

  Sized(Choice& choice, const S& initial, Null null, const char* sort = kInput) {
    given_.known = initial;
    std::memset(given_.unknown, 0, sizeof given_.unknown);
    const uint8_t byte = choice.byte();
    choice.argument(sort, byte < kWrong ? nullptr : spoil(byte, null));
    before_ = given_;
  }

  S* operator->() { return &given_.known; }
  const S& get() const { return given_.known; }
  S* pointer() { return is_null_ ? nullptr : &given_.known; }
  bool good() const { return good_; }
  bool is_null() const { return is_null_; }
  bool is_newer() const { return given_.known.struct_size == sizeof given_; }
  const Newer& whole() const { return given_; }
  bool untouched() const { return std::memcmp(&before_, &given_, sizeof before_) == 0; }
  std::string text() const {
    if (is_null_) return "NULL";
    return good_ ? "{}" : "{wrong size " + std::to_string(given_.known.struct_size) + "}";
  }

 private:
  const char* spoil(uint8_t byte, Null null) {
    good_ = false;
    size_t& size = given_.known.struct_size;
    switch (byte % 8) {
      case 0:
        is_null_ = true;
        good_ = null == Null::kGood;
        return "NULL";
      case 1:
        size = 0;
        return "size 0";
      case 2:
        size = byte % 16 < 8 ? 1 : sizeof(S) - 1;
        return "small";
      case 3:
        size = SIZE_MAX;
        return "huge";
      case 4:
      case 5:
        size = sizeof given_;
        given_.unknown[byte % 8 == 4 ? 0 : sizeof given_.unknown - 1] = 1;
        return "unknown bytes";
      default:
        size = sizeof given_;
        good_ = true;
        return "newer";
    }
  }

  Newer given_;
  Newer before_;
  bool is_null_ = false;
  bool good_ = true;
};

// A struct that receives an answer: filled with a pattern before, so that a failing call is seen to write it.
template <class S>
class Answer : public Sized<S> {
 public:
  explicit Answer(Choice& choice) : Sized<S>(choice, pattern(), Sized<S>::Null::kBad, kAnswer) {}

 private:
  static S pattern() {
    S value;
    std::memset(static_cast<void*>(&value), kUntouched, sizeof value);
    value.struct_size = sizeof value;
    return value;
  }
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
    choice.argument(kOutput, is_null_ ? "NULL" : nullptr);
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

// The name of an object: of at most 63 bytes, or too long.
class Name {
 public:
  explicit Name(Choice& choice) {
    const uint8_t byte = choice.byte();
    constexpr size_t kLongest = 63;
    if (byte >= kWrong) {
      text_.assign(kLongest + 1 + byte % 2 * 1000, 'x');
    } else if (byte % 4 == 1) {
      text_ = byte % 8 == 1 ? "something" : std::string(kLongest, 'x');
    }
    good_ = byte < kWrong;
  }
  const char* pointer() const { return text_.empty() ? nullptr : text_.c_str(); }
  const std::string& text() const { return text_; }
  bool good() const { return good_; }

 private:
  std::string text_;
  bool good_;
};

}  // namespace sequences
