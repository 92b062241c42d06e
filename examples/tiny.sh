# Sourced by the examples of the native trainer: with --tiny as the first argument they train five steps of a tiny model
# on a CPU. The text is Python's own standard library, so nothing is downloaded.
TINY=()
if [[ "${1:-}" == --tiny ]]; then
    shift
    examples=$(dirname "${BASH_SOURCE[0]}")
    TINY_DATA=${TINY_DATA:-runs/tiny/stdlib}
    if [[ ! -e "${TINY_DATA}_text_document.idx" ]]; then
        python "$examples/megatron_deepspeed_gpt2/prepare_data.py" --output-prefix "$TINY_DATA" --max-megabytes 0.2
        ascend-adapt preprocess --input "$TINY_DATA.jsonl" --output-prefix "$TINY_DATA" --vocab "$TINY_DATA-vocab.json" \
            --merge-file "$TINY_DATA-merges.txt" --dataset-impl mmap --tokenizer-type GPT2BPETokenizer --append-eod
    fi
    TINY=("$TINY_DATA")
    RUN=$(mktemp -d "$(dirname "$TINY_DATA")/run-XXXXXX")
    set -- --device cpu "$@"
fi
