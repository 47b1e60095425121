/* Compiled as strict C99: the header must need nothing more. */
#include <rankone/rankone.h>

int rankone_header_is_c99(void);

int rankone_header_is_c99(void) {
  const int64_t shape[2] = {3, 4};
  float data[12];
  const rankone_tensor tensor = rankone_row_major(data, RANKONE_F32, 2, shape);
  if (tensor.strides[0] != 4 || tensor.strides[1] != 1 || tensor.data != data) return 1;
  return rankone_row_major(data, RANKONE_F32, 9, shape).rank;
}
