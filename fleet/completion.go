package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/reason"
)

func completionCommand(std streams) *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a completion script for a shell",
		ArgsUsage: "bash|zsh|fish",
		Description: `Examples:
etcd-fleet completion bash >/etc/bash_completion.d/etcd-fleet
etcd-fleet completion zsh >/usr/share/zsh/vendor-completions/_etcd-fleet
etcd-fleet completion fish >/usr/share/fish/vendor_completions.d/etcd-fleet.fish`,
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return reason.New(reason.Usage, "name one shell: bash, zsh or fish")
			}
			script, ok := map[string]string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Args().First()]
			if !ok {
				return reason.New(reason.Usage, "no completion for %q: name bash, zsh or fish", c.Args().First())
			}
			_, err := fmt.Fprint(std.out, script)
			return err
		},
	}
}

// The scripts ask the program itself, which answers --generate-bash-completion
// with one word a line.
const (
	bashCompletion = `# bash completion for etcd-fleet
_etcd_fleet() {
	local cur words
	cur=${COMP_WORDS[COMP_CWORD]}
	words=("${COMP_WORDS[@]:0:COMP_CWORD}")
	[[ $cur == -* ]] && words+=("$cur")
	mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur")
}
complete -o default -F _etcd_fleet etcd-fleet
`
	zshCompletion = `#compdef etcd-fleet
# zsh completion for etcd-fleet
_etcd_fleet() {
	local -a opts cmd
	cmd=("${words[@]:0:$((CURRENT - 1))}")
	[[ ${words[CURRENT]} == -* ]] && cmd+=("${words[CURRENT]}")
	opts=("${(@f)$("${cmd[@]}" --generate-bash-completion 2>/dev/null)}")
	if [[ -n ${opts[1]} ]]; then _describe 'etcd-fleet' opts; else _files; fi
}
compdef _etcd_fleet etcd-fleet
`
	fishCompletion = `# fish completion for etcd-fleet
function __etcd_fleet_complete
	set -l words (commandline -opc)
	set -l cur (commandline -ct)
	string match -q -- '-*' $cur; and set words $words $cur
	$words --generate-bash-completion 2>/dev/null
end
complete -c etcd-fleet -a '(__etcd_fleet_complete)'
`
)
