# bash completion for stoker. The last word may be empty; descriptions are dropped.
_stoker() {
    local IFS=$'\n' line words
    mapfile -t words < <(stoker __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=()
    for line in "${words[@]}"; do
        [[ $line == @files ]] && { compopt -o default; COMPREPLY=(); return; }
        COMPREPLY+=("${line%%$'\t'*}")
    done
}
complete -F _stoker stoker
