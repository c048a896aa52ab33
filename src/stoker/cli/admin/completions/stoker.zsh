#compdef stoker
# zsh completion for stoker: ids and names with what they are.
_stoker() {
    local line
    local -a described
    while IFS= read -r line; do
        if [[ $line == @files ]]; then _files; return; fi
        line=${line//:/\\:}
        described+=("${line/$'\t'/:}")
    done < <(stoker __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
    _describe -V stoker described
}
if [[ $funcstack[1] == _stoker ]]; then _stoker "$@"; else compdef _stoker stoker; fi
