/* The loops for any machine. */
#define LOOP_NAME(name) name##_scalar
#include "loops.h"
