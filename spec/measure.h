/* Measuring what the draft length is chosen by: called by the loop, which owns both models' sides. */
#ifndef TD_SPEC_MEASURE_H
#define TD_SPEC_MEASURE_H

#include "draft/draft.h"
#include "spec/length.h"
#include "target/target.h"

enum { MEASURE_FAR = 2048 }; /* positions of the longer context, where there is room */

/* Fills in the table; max_rows: of the target's widest pass, 2 or more. Both caches lose what they hold. Errors as
 * spec_measure's. */
td_code measure_costs(target *t, draft *d, int max_rows, length_costs *out,
                      bool (*progress)(void *, int done, int total), void *user, td_error *err);

#endif
