// What a plan refuses, and what it learns of prefetching, without Python.
#include "../plan.h"

#include <stdio.h>

#include <stdexcept>

#include "checks.h"
#include "forced.h"

namespace cutaway {

int check_refusals() {
  TinyModel model(std::make_shared<Pool>(2), choose_kernels(""), Q4_0, 64, 2);
  const auto before = force_tokens(model, 32, 32, true);
  int wrong = 0;
  const int32_t ok[] = {0, 1}, one[] = {0, 0}, far[] = {0, 64}, big[] = {50, 50}, minus[] = {-1, 0};
  const auto refuse = [&](const int32_t* token, const int32_t* position, const int32_t* sequence,
                          const int32_t* table, const int32_t* logit_rows) {
    try {
      model.plan->run({token, position, sequence, table, logit_rows, 2, 1, 2, 2});
      wrong++, printf("a bad batch was not refused\n");
    } catch (const std::invalid_argument&) {
    }
  };
  refuse(big, ok, one, ok, ok), refuse(minus, ok, one, ok, ok), refuse(ok, far, one, ok, ok);
  refuse(ok, one, one, ok, ok), refuse(ok, ok, ok, ok, ok), refuse(ok, ok, one, minus, ok);
  refuse(ok, ok, one, big, ok), refuse(ok, ok, one, ok, big), refuse(ok, ok, one, ok, minus);
  const int32_t repeated[] = {0, 0, 1, 1, 0, 1, 0, 1, 0};  // more logits than rows
  try {
    model.plan->run({ok, ok, one, ok, repeated, 2, 1, 2, 9});
  } catch (const std::invalid_argument&) {
  }
  return wrong + (differing(before, force_tokens(model, 32, 32, true)) != 0);
}

// Three choices that take so many seconds in a step, others' work beside them: the fastest is found, where
// it is clearly faster, and steps of many rows are not tried.
int check_prefetch() {
  int wrong = 0;
  const auto describe_trial = [&](int rows, std::vector<double> seconds) {
    PrefetchTrial trial("");
    for (int step = 0; step < 40; step++) {
      const bool is_disturbed = step % 5 == 0, is_another = step % 11 == 10;
      const Ahead ahead = trial.begin(is_another ? 9 : rows, rows);
      trial.end(is_another ? 0.001 : seconds[(int)ahead] * (is_disturbed ? 2 : 1));
    }
    return trial.describe();
  };
  const auto expect = [&](const std::string& actual, const char* expected) {
    if (actual != expected) wrong++, printf("prefetch: %s, not %s\n", actual.c_str(), expected);
  };
  expect(describe_trial(1, {3, 2, 1}), "far, not known yet, not known yet");
  expect(describe_trial(2, {3, 1, 2}), "not known yet, near, not known yet");
  expect(describe_trial(8, {1, 2, 3}), "not known yet, not known yet, none");
  expect(describe_trial(1, {1, 0.99, 0.99}), "none, not known yet, not known yet");
  expect(describe_trial(8, {0.99, 0.99, 1}), "not known yet, not known yet, far");
  expect(describe_trial(300, {1, 2, 3}), "not known yet, not known yet, not known yet");
  expect(PrefetchTrial("near").describe(), "near, near, near");
  return wrong;
}

}  // namespace cutaway
