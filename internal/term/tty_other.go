//go:build !unix

package term

import "os"

// openTTY knows no terminals here: output is plain lines.
func openTTY(*os.File) TTY { return nil }
