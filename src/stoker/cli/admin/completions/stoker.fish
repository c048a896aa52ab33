# fish completion for stoker: ids and names with what they are.
function __stoker_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (stoker __complete $words[2..-1] 2>/dev/null)
        if test "$line" = @files
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c stoker -f -a '(__stoker_complete)'
