package cmdline

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"
)

// TestMan: the page holds every command and flag that help shows, and no other, and
// the formatter takes text for text.
func TestMan(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	nothing := func(*cli.Context) error { return nil }
	var out bytes.Buffer
	app := &cli.App{
		Name: "prog", Usage: `does "things"`, Version: "1.2", Description: "First.\n\n.not a request\n'nor this\n\nExamples:\nprog a b --flag 1\n.hidden \\n",
		Commands: []*cli.Command{
			{Name: "group", Subcommands: []*cli.Command{{Name: "leaf", Usage: "do it", ArgsUsage: "HOST...", Action: nothing, Flags: []cli.Flag{
				&cli.StringFlag{Name: "file-name", Aliases: []string{"f"}, Usage: "`FILE` to read", DefaultText: "none", EnvVars: []string{"PROG_FILE"}},
				&cli.BoolFlag{Name: "secret", Hidden: true},
			}}}},
			{Name: "internal", Hidden: true, Action: nothing},
			ManCommand(&out, Manual{Section: 8, Files: [][2]string{{"/etc/prog", "Settings."}}, SeeAlso: "other(1)"}),
		},
	}
	var stderr bytes.Buffer
	if err := Run(context.Background(), app, []string{"prog", "man"}, &out, &stderr); err != nil {
		t.Fatal(err)
	}
	page := out.String()
	for _, want := range []string{
		".TH PROG 8 \"1970-01-02\" \"prog 1.2\"\n", ".SH NAME\nprog \\- does \"things\"\n",
		".B prog group leaf\n.I [OPTIONS] HOST...\n", ".SS \"prog group leaf [OPTIONS] HOST...\"\n.PP\ndo it.\n",
		"\n\\&.not a request\n\\&'nor this\n", "prog a b \\-\\-flag 1\n\\&.hidden \\en\n",
		".TP\n\\fB\\-\\-file\\-name\\fR, \\fB\\-f\\fR \\fIFILE\\fR\nto read; default: none; in the environment: PROG_FILE.\n",
		".SH FILES\n.TP\n.I /etc/prog\nSettings.\n", ".SH SEE ALSO\nother(1)\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"secret", "internal", "prog man", "prog help"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page shows %q", bad)
		}
	}
	if t.Failed() {
		t.Log(page)
	}
	if _, err := exec.LookPath("groff"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("groff is not installed: its warnings were not looked at")
	}
	groff := exec.CommandContext(t.Context(), "groff", "-man", "-Tutf8", "-ww", "-z")
	groff.Stdin = &out
	if said, err := groff.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("groff: %v: %s", err, said)
	}
}
