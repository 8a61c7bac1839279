package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// Case is one test case of a JUnit report.
type Case struct {
	Name    string // what was looked at
	Class   string // groups cases: "etcd-fleet.nodes.wait"
	Seconds float64
	Outcome Outcome
	Type    string   // reason code
	Message string   // one line
	Detail  []string // lines of the body
}

// Outcome of a Case.
type Outcome uint8

const (
	Passed  Outcome = iota
	Failed          // a definite no
	Errored         // could not tell, or not in time
	Skipped         // was not looked at, since the run had failed already
)

// Suite is a JUnit report of one suite. Its form is the one that the Ant JUnit
// task writes, which Jenkins, GitLab and others read.
type Suite struct {
	Program string // "etcd-fleet nodes wait"
	Name    string // "etcd nodes"
	Started time.Time
	Seconds float64
	Cases   []Case
}

type xmlSuites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Skipped  int      `xml:"skipped,attr"`
	Time     string   `xml:"time,attr"`
	Suite    xmlSuite `xml:"testsuite"`
}

type xmlSuite struct {
	Name      string    `xml:"name,attr"`
	Tests     int       `xml:"tests,attr"`
	Failures  int       `xml:"failures,attr"`
	Errors    int       `xml:"errors,attr"`
	Skipped   int       `xml:"skipped,attr"`
	Time      string    `xml:"time,attr"`
	Timestamp string    `xml:"timestamp,attr"` // xs:dateTime in UTC, without a zone as the form has it
	Cases     []xmlCase `xml:"testcase"`
}

type xmlCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Failure *xmlProblem `xml:"failure"`
	Error   *xmlProblem `xml:"error"`
	Skipped *xmlSkipped `xml:"skipped"`
}

type xmlProblem struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Detail  string `xml:",chardata"`
}

type xmlSkipped struct {
	Message string `xml:"message,attr"`
}

// Write writes the suite as XML.
func (s Suite) Write(w io.Writer) error {
	x := xmlSuite{
		Name: xmlText(s.Name), Tests: len(s.Cases), Time: xmlSeconds(s.Seconds),
		Timestamp: s.Started.UTC().Format("2006-01-02T15:04:05"),
	}
	for _, c := range s.Cases {
		xc := xmlCase{Class: xmlText(c.Class), Name: xmlText(c.Name), Time: xmlSeconds(c.Seconds)}
		var detail []string
		for _, d := range c.Detail {
			if d != "" {
				detail = append(detail, xmlText(d))
			}
		}
		p := &xmlProblem{Message: xmlText(c.Message), Type: xmlText(c.Type), Detail: strings.Join(detail, "\n")}
		switch c.Outcome {
		case Failed:
			x.Failures++
			xc.Failure = p
		case Errored:
			x.Errors++
			xc.Error = p
		case Skipped:
			x.Skipped++
			xc.Skipped = &xmlSkipped{Message: p.Message}
		}
		x.Cases = append(x.Cases, xc)
	}
	doc := xmlSuites{Name: xmlText(s.Program), Tests: x.Tests, Failures: x.Failures, Errors: x.Errors, Skipped: x.Skipped, Time: x.Time, Suite: x}
	out, err := xml.MarshalIndent(doc, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write JUnit XML: %w", err)
	}
	_, err = w.Write(append(append([]byte(xml.Header), out...), '\n'))
	return err
}

// xmlText leaves only what XML 1.0 (clause 2.2, production Char) allows: Line
// already replaced every character that is not printable, the rest is a subset.
func xmlText(s string) string { return reason.Line(s) }

func xmlSeconds(s float64) string { return fmt.Sprintf("%.3f", max(s, 0)) }

// WriteJUnit writes the report with one test case a node, one for the cluster
// when its health was asked for, and one for what stopped the run as a whole,
// so that a run that looked at nothing is never green. r is complete.
func WriteJUnit(w io.Writer, r Report) error {
	class := "etcd-fleet." + strings.ReplaceAll(r.Command, " ", ".")
	s := Suite{Program: "etcd-fleet " + r.Command, Name: "etcd nodes", Started: r.Started, Seconds: r.Seconds}
	definite := false
	for _, n := range r.Nodes {
		definite = definite || outcome(n.Code) == Failed
	}
	for _, n := range r.Nodes {
		c := Case{
			Name: n.Node, Class: class, Seconds: seconds(n.Ended.Sub(n.Started)),
			Outcome: outcome(n.Code), Type: string(n.Code), Message: because(n.Message, n.Code),
		}
		if n.State == "waiting" && c.Outcome == Errored && definite {
			c.Outcome = Skipped
		}
		c.Detail = []string{c.Message, prefixed("hint: ", n.Hint), prefixed("state: ", n.State)}
		if o := n.Last; o != nil {
			c.Detail = append(c.Detail, fmt.Sprintf("last answer: %s, unit %s/%s (%s), cloud-init %s",
				o.At.Format(time.RFC3339), o.Unit["ActiveState"], o.Unit["SubState"], o.Unit["Result"], o.CloudInit))
		}
		s.Cases = append(s.Cases, c)
	}
	if h := r.Health; h != nil {
		c := Case{Name: "cluster health", Class: class, Outcome: outcome(h.Code), Type: string(h.Code), Message: because(h.Message, h.Code)}
		for _, p := range h.Problems {
			c.Detail = append(c.Detail, because(p.Message, p.Code))
		}
		c.Detail = append(c.Detail, prefixed("hint: ", h.Hint))
		s.Cases = append(s.Cases, c)
	}
	if p := r.Problem; p != nil {
		c := Case{Name: r.Command, Class: class, Seconds: r.Seconds, Outcome: outcome(p.Code), Type: string(p.Code), Message: because(p.Message, p.Code)}
		if c.Outcome == Passed || c.Outcome == Failed {
			c.Outcome = Errored // the run itself is not a node that failed
		}
		c.Detail = []string{c.Message, prefixed("hint: ", p.Hint)}
		s.Cases = append(s.Cases, c)
	}
	if len(s.Cases) == 0 {
		s.Cases = []Case{{Name: r.Command, Class: class, Outcome: Errored, Type: string(reason.NoNodes), Message: r.Summary}}
	}
	return s.Write(w)
}

// outcome follows the exit status of a code: only a definite no is a failure.
func outcome(c reason.Code) Outcome {
	switch reason.Lookup(c).Exit {
	case reason.ExitYes:
		return Passed
	case reason.ExitNo:
		return Failed
	}
	return Errored
}

func prefixed(label, s string) string {
	if s == "" {
		return ""
	}
	return label + s
}
