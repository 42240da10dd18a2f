// What goes into the core and comes out of it: one row of doubles, which every language can write.
//
// A number is itself, a boolean 0 or 1; a list is how many items it has, then these; a string is the list of its characters.
#pragma once
#include <stdint.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace cutaway {

class Reader {
 public:
  Reader(const double* at, size_t count) : at_(at), end_(at + count) {}
  bool is_done() const { return at_ == end_; }
  double number() {
    if (is_done()) throw std::invalid_argument("the list of numbers ends too early");
    return *at_++;
  }
  int integer() { return (int)number(); }
  bool boolean() { return number() != 0; }
  size_t count() { return (size_t)number(); }
  // Of a list that has so many items always.
  void expect(size_t items) {
    if (count() != items) throw std::invalid_argument("a list has not as many items as it must have");
  }
  template <class Each> auto list(Each each) {
    std::vector<decltype(each())> items;
    for (size_t left = count(); left; left--) items.push_back(each());
    return items;
  }
  std::vector<float> floats() { return list([&] { return (float)number(); }); }
  std::vector<double> doubles() { return list([&] { return number(); }); }
  std::vector<int32_t> integers() { return list([&] { return (int32_t)integer(); }); }
  std::vector<int64_t> ids() { return list([&] { return (int64_t)number(); }); }
  std::string string() {
    std::string text;
    for (size_t left = count(); left; left--) text.push_back((char)integer());
    return text;
  }
  uint64_t uint64() {  // two halves, the upper first
    const uint64_t upper = (uint64_t)number();
    return upper << 32 | (uint64_t)number();
  }

 private:
  const double *at_, *end_;
};

class Writer {
 public:
  void clear() { numbers_.clear(); }
  void put(double number) { numbers_.push_back(number); }
  void uint64(uint64_t word) { put((double)(word >> 32)), put((double)(word & 0xffffffff)); }
  template <class Optional> void optional(const Optional& value) { value ? put((double)*value) : put(__builtin_nan("")); }
  template <class List, class Each> void list(const List& items, Each each) {
    put((double)items.size());
    for (const auto& item : items) each(item);
  }
  template <class List> void list(const List& items) {
    list(items, [&](auto item) { put((double)item); });
  }
  const std::vector<double>& numbers() const { return numbers_; }

 private:
  std::vector<double> numbers_;
};

}  // namespace cutaway
