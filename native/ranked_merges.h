// Byte-pair encoding by ranks: which neighbours in a word become one token, and which of them first.
#pragma once
#include <stdint.h>

#include <string>
#include <string_view>
#include <vector>

namespace cutaway {

// Texts, one behind the other.
struct Texts {
  std::u32string characters;
  std::vector<size_t> ends{0};

  size_t size() const { return ends.size() - 1; }
  std::u32string_view operator[](size_t i) const { return std::u32string_view(characters).substr(ends[i], ends[i + 1] - ends[i]); }
};

// A hash table of indexes, with room for as many as it was made for.
class IndexTable {
 public:
  explicit IndexTable(size_t count);
  // The place of the index for which `is_wanted` is true, or the free place, -1, where it would be.
  template <class IsWanted> int32_t& place(uint64_t hash, IsWanted is_wanted) {
    size_t at = hash & mask_;
    while (places_[at] >= 0 && !is_wanted(places_[at])) at = (at + 1) & mask_;
    return places_[at];
  }
  template <class IsWanted> int32_t find(uint64_t hash, IsWanted is_wanted) const {
    return const_cast<IndexTable*>(this)->place(hash, is_wanted);
  }

 private:
  size_t mask_;
  std::vector<int32_t> places_;
};

class RankedMerges {
 public:
  // hidden: ids of tokens that no text spells. merges: "LEFT RIGHT", the lowest rank first.
  RankedMerges(Texts tokens, const std::vector<int32_t>& hidden, const Texts& merges);
  // The first merge that does not join two tokens to a third; -1: there is none.
  int64_t misfit() const { return misfit_; }
  // The token with this text, the last of several; -1: there is none.
  int32_t id_of(std::u32string_view text) const;
  // The ids of a word: of all neighbours that a merge joins, those of the lowest rank are joined, the leftmost among equals, until
  // there are none. Takes O(n log n) for n characters. Throws std::out_of_range for a character that is no token.
  std::vector<int32_t> merge(std::u32string_view word) const;

 private:
  struct Merge {
    int32_t left, right, whole;
  };

  uint64_t hash(std::u32string_view text) const;
  uint64_t hash(int32_t left, int32_t right) const;
  // The rank of this pair of tokens; -1: it is not merged.
  int32_t rank_of(int32_t left, int32_t right) const;

  const uint64_t seed_;
  const Texts tokens_;
  IndexTable ids_, ranks_;
  std::vector<Merge> merges_;
  int64_t misfit_ = -1;
};

}  // namespace cutaway
