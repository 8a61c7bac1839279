package inventory

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// maxRuns is how many numbers of a name take part in folding. A name with more
// of them is written as it is.
const maxRuns = 16

// FoldNames writes names as a node set, for people to read and to give back as
// an argument: "etcd[1-3].example", "203.0.113.10:[50000-50002]". Names that
// have nothing in common are joined by commas. A name given twice stands once;
// the sets are in the order of the first name of each.
//
// Reading the result gives the same names, unless one of them is itself a node
// set or has unmatched brackets or a comma; such a name is written as it is.
func FoldNames(names []string) string {
	shapes := make(map[string][]row)
	seen := make(map[string]bool)
	for i, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		text, values := split(name)
		r := row{order: i, text: text, values: make([][]string, len(values))}
		for d, v := range values {
			r.values[d] = []string{v}
		}
		shape := "=" + name
		if len(values) > 0 {
			shape = "~" + strings.Join(text, "0") // no text has a digit in it
		}
		shapes[shape] = append(shapes[shape], r)
	}
	var all []row
	for _, rows := range shapes {
		// The last number is the one that differs most often: a port, or the
		// last part of an address.
		for d := len(rows[0].values) - 1; d >= 0; d-- {
			rows = foldAlong(rows, d)
		}
		all = append(all, rows...)
	}
	slices.SortFunc(all, func(a, b row) int { return cmp.Compare(a.order, b.order) })
	sets := make([]string, len(all))
	for i, r := range all {
		sets[i] = r.String()
	}
	return strings.Join(sets, ",")
}

// A row stands for every choice of one value for each gap between its texts.
type row struct {
	order  int        // of its first name among all names
	text   []string   // one more than values
	values [][]string // each sorted as byNumber
}

func (r row) String() string {
	var b strings.Builder
	for d, v := range r.values {
		b.WriteString(r.text[d])
		b.WriteString(ranges(v))
	}
	b.WriteString(r.text[len(r.values)])
	return b.String()
}

// foldAlong makes one row of those that differ in values d only.
func foldAlong(rows []row, d int) []row {
	at := make(map[string]int)
	var out []row
	for _, r := range rows {
		var key strings.Builder
		for other, v := range r.values {
			if other != d {
				key.WriteString(strings.Join(v, ","))
			}
			key.WriteByte(';')
		}
		i, ok := at[key.String()]
		if !ok {
			at[key.String()] = len(out)
			out = append(out, r)
			continue
		}
		// Rows never share a name, so these values differ from those.
		out[i].values[d] = append(out[i].values[d], r.values[d]...)
	}
	for _, r := range out {
		slices.SortFunc(r.values[d], byNumber)
	}
	return out
}

// byNumber sorts numbers that are padded alike by value.
func byNumber(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// ranges writes sorted numbers as a range set, or as it is when there is one.
func ranges(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	var items []string
	for i := 0; i < len(values); {
		j := i + 1
		for j < len(values) && values[j] == following(values[i], values[j-1]) {
			j++
		}
		if first, last := values[i], values[j-1]; first == last {
			items = append(items, first)
		} else {
			items = append(items, first+"-"+last)
		}
		i = j
	}
	return "[" + strings.Join(items, ",") + "]"
}

// following returns the number after last in a range that begins with first.
func following(first, last string) string {
	n, err := strconv.ParseInt(last, 10, 64)
	if err != nil {
		return "" // split lets nothing through that is not a number
	}
	next := strconv.FormatInt(n+1, 10)
	if padded(first) && len(next) < len(first) {
		next = strings.Repeat("0", len(first)-len(next)) + next
	}
	if len(next) > maxDigits {
		return ""
	}
	return next
}

// split takes name apart into its numbers and the texts around them. A name
// that cannot stand in a node set is one text.
func split(name string) (text, values []string) {
	if same, err := expand(name); err != nil || len(same) != 1 || same[0] != name {
		return []string{name}, nil
	}
	begin := 0
	for i := 0; i < len(name); {
		end := i
		for end < len(name) && name[end] >= '0' && name[end] <= '9' {
			end++
		}
		if end == i {
			i++
			continue
		}
		if end-i > maxDigits {
			return []string{name}, nil
		}
		text = append(text, name[begin:i])
		values = append(values, name[i:end])
		begin, i = end, end
	}
	if len(values) > maxRuns {
		return []string{name}, nil
	}
	return append(text, name[begin:]), values
}
