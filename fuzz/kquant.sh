#!/usr/bin/env bash
# Build fuzz/kquant.c with clang's libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, and run its two targets.
#   fuzz/kquant.sh [SECONDS [quantise|dequantise]]     600 s each by default; a finding leaves crash-* here and fails
set -euo pipefail
cd "$(dirname "$0")/.."
out=build/fuzz
flags="-std=c11 -O1 -g -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover=all -fsanitize=fuzzer-no-link -Icsrc"
wide=
[ "$(uname -m)" = x86_64 ] && wide="-mavx2 -mfma -mf16c"
mkdir -p $out/kquant
for source in csrc/kquant/*.c; do
  case $source in
    *_avx*.c) [ -n "$wide" ] || continue ;;&
    *_avx512.c) isa="$wide -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni" ;;
    *_avx2.c) isa=$wide ;;
    *) isa= ;;
  esac
  # shellcheck disable=SC2086
  clang $flags $isa -c "$source" -o "$out/kquant/$(basename "$source" .c).o"
done
for target in ${2:-quantise dequantise}; do
  case $target in dequantise) blocks=-DFUZZ_BLOCKS ;; *) blocks= ;; esac
  mkdir -p "$out/corpus-$target"
  # shellcheck disable=SC2086
  clang $flags $blocks -fsanitize=fuzzer fuzz/kquant.c $out/kquant/*.o -lm -o "$out/$target"
  "$out/$target" -max_total_time="${1:-600}" -max_len=20000 -timeout=20 -print_final_stats=1 "$out/corpus-$target"
done
