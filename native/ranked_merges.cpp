#include "ranked_merges.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <random>
#include <stdexcept>
#include <tuple>

namespace cutaway {

namespace {

uint64_t mix(uint64_t hash, uint64_t number) {
  hash = (hash ^ number) * 0x9E3779B97F4A7C15;
  return hash ^ hash >> 32;
}

}  // namespace

IndexTable::IndexTable(size_t count) : mask_(std::bit_ceil(2 * count + 2) - 1), places_(mask_ + 1, -1) {}

// The seed is a new one each time, so that nobody can write a file whose texts all have one hash.
RankedMerges::RankedMerges(Texts tokens, const std::vector<int32_t>& hidden, const Texts& merges)
    : seed_(std::random_device{}()), tokens_(std::move(tokens)), ids_(tokens_.size()), ranks_(merges.size()) {
  std::vector<bool> is_hidden(tokens_.size());
  for (const int32_t id : hidden) is_hidden.at(id) = true;
  for (size_t id = 0; id < tokens_.size(); id++) {
    const std::u32string_view text = tokens_[id];
    if (!is_hidden[id]) ids_.place(hash(text), [&](int32_t other) { return tokens_[other] == text; }) = (int32_t)id;
  }
  std::u32string whole;
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); rank++) {
    const std::u32string_view pair = merges[rank], left = pair.substr(0, pair.find(U' '));
    const std::u32string_view right = pair.substr(std::min(left.size() + 1, pair.size()));
    whole.assign(left).append(right);
    const Merge merge{id_of(left), id_of(right), id_of(whole)};
    if (std::min({merge.left, merge.right, merge.whole}) < 0) {
      misfit_ = (int64_t)rank;
      return;
    }
    merges_.push_back(merge);
    ranks_.place(hash(merge.left, merge.right), [&](int32_t other) {
      return merges_[other].left == merge.left && merges_[other].right == merge.right;
    }) = (int32_t)rank;
  }
}

uint64_t RankedMerges::hash(std::u32string_view text) const {
  uint64_t hash = seed_;
  for (const char32_t character : text) hash = mix(hash, character);
  return hash;
}

uint64_t RankedMerges::hash(int32_t left, int32_t right) const { return mix(seed_, (uint64_t)left << 32 | (uint32_t)right); }

int32_t RankedMerges::id_of(std::u32string_view text) const {
  return ids_.find(hash(text), [&](int32_t id) { return tokens_[id] == text; });
}

int32_t RankedMerges::rank_of(int32_t left, int32_t right) const {
  return ranks_.find(hash(left, right), [&](int32_t rank) { return merges_[rank].left == left && merges_[rank].right == right; });
}

std::vector<int32_t> RankedMerges::merge(std::u32string_view word) const {
  struct Join {
    int32_t rank;
    ptrdiff_t left, right;

    bool operator>(const Join& other) const { return std::tie(rank, left) > std::tie(other.rank, other.left); }
  };
  const ptrdiff_t end = (ptrdiff_t)word.size();
  std::vector<int32_t> ids(end);  // -1: it was joined to the part before it
  std::vector<ptrdiff_t> previous(end), next(end);
  std::priority_queue<Join, std::vector<Join>, std::greater<>> joins;
  const auto add = [&](ptrdiff_t left, ptrdiff_t right) {
    const int32_t rank = left < 0 || right >= end ? -1 : rank_of(ids[left], ids[right]);
    if (rank >= 0) joins.push({rank, left, right});
  };
  for (ptrdiff_t at = 0; at < end; at++) {
    ids[at] = id_of(word.substr(at, 1));
    if (ids[at] < 0) throw std::out_of_range("a character that is no token");
    previous[at] = at - 1, next[at] = at + 1;
    add(at - 1, at);
  }
  while (!joins.empty()) {
    const auto [rank, left, right] = joins.top();
    const Merge& merge = merges_[rank];
    joins.pop();
    if (ids[left] != merge.left || ids[right] != merge.right) continue;  // one of them was joined to another part meanwhile
    ids[left] = merge.whole, ids[right] = -1;
    next[left] = next[right];
    if (next[left] < end) previous[next[left]] = left;
    add(previous[left], left);
    add(left, next[left]);
  }
  std::erase(ids, -1);
  return ids;
}

}  // namespace cutaway
