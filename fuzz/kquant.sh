#!/usr/bin/env bash
# Build fuzz/kquant.c with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and run it.
#   fuzz/kquant.sh [SECONDS]        600 by default; a finding leaves crash-* here and fails
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/fuzz
mkdir -p $out/corpus
flags="-std=c11 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all -Icsrc"
wide="-mavx2 -mfma -mf16c"
for source in csrc/kquant/*.c fuzz/kquant.c; do
  case $source in
    *_avx512.c) isa="$wide -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
    *_avx2.c) isa=$wide ;;
    *) isa= ;;
  esac
  # shellcheck disable=SC2086
  clang $flags $isa -fsanitize=fuzzer-no-link -c "$source" -o "$out/$(basename "$source" .c).${source%%/*}.o"
done
clang -fsanitize=fuzzer,address,undefined $out/*.o -lm -o $out/kquant
exec $out/kquant -max_total_time="${1:-600}" -max_len=20000 -timeout=20 -print_final_stats=1 $out/corpus
