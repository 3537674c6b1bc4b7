# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Completion of gpumem for fish. Commands and options come from the help of the program itself.

function __gpumem_complete
    set -l words (commandline -opc)
    set -l command
    for word in $words[2..-1]
        if not string match -q -- '-*' $word
            set command $word
            break
        end
    end
    if string match -q -- '-*' (commandline -ct)
        # In any width less than that, a description is broken into lines.
        set -l help (COLUMNS=10000 $words[1] help $command 2>/dev/null)
        for line in $help
            if set -l found (string match -r -- '^  (-\S+)(?: [A-Z]+)?  +(.*)$' $line)
                for option in (string split , -- $found[2])
                    printf '%s\t%s\n' $option $found[3]
                end
            end
        end
    else if test -z "$command" -o "$command" = help
        COLUMNS=10000 $words[1] help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\)  */\1\t/p'
    end
end

# Files only after a command that takes some.
complete -c gpumem -n 'not string match -qr "^(move|share|attach|keep|bench|why|trace)\$" -- (commandline -opc)[2]' -f
complete -c gpumem -a '(__gpumem_complete)'
