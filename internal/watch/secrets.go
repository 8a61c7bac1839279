package watch

import "regexp"

var (
	headersKey = regexp.MustCompile(`(?i)headers?\b`)
	topKey     = regexp.MustCompile(`^["'\pL]`)
	secretText = regexp.MustCompile(`(?i)pass|secret|token|authorization|cookie|api-?key|://[^/]*@`)
	// tokenFile is the one setting whose name looks like a secret and is none.
	tokenFile = regexp.MustCompile(`^token_file\s*:`)
)

// secretLines tells which lines may hold a secret: everything from a key
// "headers" to the next key at the top, and what looks like one anywhere else.
// It goes by the text, since a file with a fault in it has no other form.
func secretLines(lines []string) []bool {
	hidden := make([]bool, len(lines))
	in := false
	for i, line := range lines {
		if topKey.MatchString(line) {
			in = false
		}
		in = in || headersKey.MatchString(line)
		hidden[i] = in || secretText.MatchString(line) && !tokenFile.MatchString(line)
	}
	return hidden
}
