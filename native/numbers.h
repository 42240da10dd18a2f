// What a plan is made from, and what goes into the page's core and comes out of it: a row of doubles, which every language can write.
//
// A number is itself, a boolean 0 or 1; a list is how many items it has, then these; a string is the list of its characters.
#pragma once
#include <stdint.h>

#include <limits>
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
  int integer() { return whole<int>(0x1p31); }
  bool boolean() { return number() != 0; }
  // How many items a list has; each has a number at least.
  size_t count() {
    const double n = number();
    if (!(n >= 0 && n <= (double)(end_ - at_))) throw std::invalid_argument("a list has more items than there are numbers");
    return (size_t)n;
  }
  // The same for a list that always has so many items.
  void expect(size_t items) {
    if (count() != items) throw std::invalid_argument("a list has not as many items as it must have");
  }
  template <class Each> auto list(Each read_item) {
    std::vector<decltype(read_item())> items;
    size_t left = count();
    for (items.reserve(left); left; left--) items.push_back(read_item());
    return items;
  }
  std::vector<double> doubles() { return list([&] { return number(); }); }
  std::vector<int64_t> ids() { return list([&] { return (int64_t)integer(); }); }
  std::string string() {
    std::string text;
    for (size_t left = count(); left; left--) text.push_back((char)integer());
    return text;
  }
  uint64_t uint64() {  // two halves, the upper first
    const uint64_t upper = whole<uint32_t>(0x1p32);
    return upper << 32 | whole<uint32_t>(0x1p32);
  }

 private:
  template <class T> T whole(double end) {
    const double n = number();
    if (!(n >= (double)std::numeric_limits<T>::min() && n < end)) throw std::invalid_argument("a number is larger than it may be");
    return (T)n;
  }

  const double *at_, *end_;
};

class Writer {
 public:
  void clear() { numbers_.clear(); }
  void put(double number) { numbers_.push_back(number); }
  void uint64(uint64_t word) { put((double)(word >> 32)), put((double)(word & 0xffffffff)); }
  template <class Optional> void optional(const Optional& value) { value ? put((double)*value) : put(__builtin_nan("")); }
  template <class List, class Each> void list(const List& items, Each write_item) {
    put((double)items.size());
    for (const auto& item : items) write_item(item);
  }
  template <class List> void list(const List& items) {
    list(items, [&](auto item) { put((double)item); });
  }
  const std::vector<double>& numbers() const { return numbers_; }

 private:
  std::vector<double> numbers_;
};

}  // namespace cutaway
