#include <cmath>

#include "row_ops.hpp"

namespace pagemill {

VocabSummary join_vocab_peaks(const VocabPeak* peaks, int count) {
  VocabSummary summary = {peaks[0].max, peaks[0].argmax, 0.0f};
  for (int i = 1; i < count; ++i) {
    if (peaks[i].max > summary.max) {
      summary.max = peaks[i].max;
      summary.argmax = peaks[i].argmax;
    }
  }
  double total = 0.0;
  for (int i = 0; i < count; ++i) {
    if (peaks[i].sum_of_exp > 0.0f) {
      total += peaks[i].sum_of_exp * std::exp(double{peaks[i].max} - double{summary.max});
    }
  }
  summary.log_sum_exp = static_cast<float>(summary.max + std::log(total));
  return summary;
}

}  // namespace pagemill
