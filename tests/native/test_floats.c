/* What Python cannot see of floats: that no loop touches a byte outside buffers of exactly the promised size (under
 * sanitizers), at every length around a piece, and that instruction sets agree on any bits at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "floats/floats.h"

static int failures;

#define EXPECT(ok) \
    do { \
        if (!(ok)) failures++, printf("%s:%d: %s\n", __FILE__, __LINE__, #ok); \
    } while (0)

static const enum fl_type TYPES[] = {FL_F32, FL_F16, FL_BF16};

/* Random bits: every exponent, so infinities and NaNs too. */
static void fill(uint8_t *x, size_t bytes) {
    static uint32_t state = 1;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (uint8_t)(state >> 24);
    }
}

static void loops_stay_inside_and_agree(enum fl_type from, enum fl_type to, size_t n) {
    size_t bytes = n * fl_bytes(from), wrote = n * fl_bytes(to);
    uint8_t *x = malloc(bytes + !n), *plain = malloc(wrote + !n), *fast = malloc(wrote + !n);
    if (!x || !plain || !fast) abort();
    fill(x, bytes);
    struct fl_losses one = fl_convert(from, x, to, plain, n, FL_ISA_SCALAR);
    struct fl_losses two = fl_convert(from, x, to, fast, n, FL_ISA_AUTO);
    EXPECT(memcmp(plain, fast, wrote) == 0 && memcmp(&one, &two, sizeof one) == 0);
    EXPECT(fl_find_nonfinite(from, x, n, FL_ISA_SCALAR) == fl_find_nonfinite(from, x, n, FL_ISA_AUTO));
    free(x), free(plain), free(fast);
}

int main(void) {
    const size_t lengths[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 1023, 1024, 1025, 2048, 2049, 3000};
    for (int f = 0; f < 3; f++) {
        for (int t = 0; t < 3; t++) {
            for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) loops_stay_inside_and_agree(TYPES[f], TYPES[t], lengths[k]);
        }
    }
    EXPECT(fl_bytes((enum fl_type)8) == 0 && !fl_isa_usable((enum fl_isa)9));
    if (failures) printf("%d failures\n", failures);
    return failures != 0;
}
