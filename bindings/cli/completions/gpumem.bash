# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
# Completion of gpumem for bash. Commands and options come from the help of the program itself.

_gpumem() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} i command='' words=() line option value help
  # bash takes = for a word of its own.
  if [[ $current == = ]]; then
    current=''
  elif [[ $previous == = ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  COMPREPLY=()
  # In any width less than that, a description is broken into lines.
  help=$(COLUMNS=10000 "$1" help ${command:+"$command"} 2> /dev/null) || return 0

  if [[ $previous == -* ]]; then
    while IFS= read -r line; do
      read -r option value line <<< "$line"
      if [[ ,$option, != *",$previous,"* || ! $value =~ ^[A-Z]+$ ]]; then continue; fi
      case $option in
        --backend | --kind | --pool)
          # "any, cuda or host (default: ...)", "Kind of memory, repeatable: pageable, pinned (default: all)"
          line=${line%% (*}
          line=${line##*: }
          line=${line//,/}
          mapfile -t COMPREPLY < <(compgen -W "${line// or / }" -- "$current")
          ;;
        *)
          case $value in
            DIR) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
            FILE | PATH) mapfile -t COMPREPLY < <(compgen -f -- "$current") ;;
          esac
          compopt -o filenames 2> /dev/null
          ;;
      esac
      return 0
    done <<< "$help"
  fi

  if [[ $current == -* ]]; then
    while read -r option line; do
      if [[ $option == -* ]]; then words+=("${option//,/ }"); fi
    done <<< "$help"
  elif [[ -z $command || $command == help ]]; then
    while read -r option line; do words+=("$option"); done \
      < <(COLUMNS=10000 "$1" help 2> /dev/null | sed -n '/^Commands:/,/^$/s/^  //p')
  elif [[ $help == *$'\n  ACTION '* && $previous == "$command" ]]; then
    # "ACTION  list: ...; withdraw: ..."
    mapfile -t words < <(grep '^  ACTION ' <<< "$help" | grep -o '[a-z]*: ' | tr -d ': ')
  elif [[ $help == *$'\n  FILE '* ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames 2> /dev/null
    return 0
  fi
  mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$current")
}

complete -F _gpumem gpumem
