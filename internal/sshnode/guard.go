package sshnode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"cks-etcd/internal/reason"
)

// A stage is how far a connection has come. It decides what a failure means.
type stage int32

const (
	stageConnect stage = iota // no connection yet
	stageBanner               // connected; the server has not said "SSH-2.0-..."
	stageKex                  // key exchange, up to the check of the host key
	stageAuth                 // login
	stageReady                // logged in
)

// budgetBeforeLogin is how much a server may send before it let us in. A real
// one needs below 10 KiB; x/crypto reads up to 1024 lines before the banner,
// and any number of login banners.
const budgetBeforeLogin = 256 << 10

// errBudget ends a connection whose server talks without end.
var errBudget = errors.New("it sent more than 256 KiB before the login")

// A guard is the connection below one SSH transport. It watches how far the
// other side has come, bounds what it may send before the login, and counts.
type guard struct {
	net.Conn
	r     *bufio.Reader // x/crypto reads the banner byte by byte
	stats *counters
	stage atomic.Int32

	// Below is used by the one goroutine that reads.
	read int
	line []byte // current line of what comes before the banner

	mu    sync.Mutex
	first string // first line that is not the banner, "" none
}

// maxFirstLine bounds what is kept of a line before the banner.
const maxFirstLine = 200

func newGuard(c net.Conn, stats *counters) *guard {
	g := &guard{Conn: c, r: bufio.NewReaderSize(c, 512), stats: stats}
	g.stage.Store(int32(stageBanner))
	return g
}

// at returns the stage reached.
func (g *guard) at() stage { return stage(g.stage.Load()) }

// reach notes that stage s began.
func (g *guard) reach(s stage) { g.stage.Store(int32(s)) }

// Read reads from the server.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	g.stats.read.Add(int64(n))
	switch g.at() {
	case stageReady:
		return n, err
	case stageBanner:
		g.banner(p[:n])
		if err != nil {
			g.keep() // a last line without its end
		}
	}
	if g.read += n; g.read > budgetBeforeLogin {
		return 0, errBudget
	}
	return n, err
}

// banner follows the lines before and of the identification string (RFC 4253,
// section 4.2). x/crypto ignores the lines before, where sshd says why it ends
// the connection ("Exceeded MaxStartups") and where another protocol shows.
func (g *guard) banner(p []byte) {
	for _, c := range p {
		if c != '\n' {
			if len(g.line) < maxFirstLine {
				g.line = append(g.line, c)
			}
			continue
		}
		if bytes.HasPrefix(g.line, []byte("SSH-")) {
			g.reach(stageKex)
			g.line = nil
			return
		}
		g.keep()
		g.line = g.line[:0]
	}
}

// keep keeps the line for messages if it is the first one.
func (g *guard) keep() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := reason.Line(string(g.line)); g.first == "" && s != "" {
		g.first = s
	}
}

// said words what the server sent in the place of its banner, "" nothing.
func (g *guard) said() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.first == "" {
		return ""
	}
	return fmt.Sprintf("; it sent %q", g.first)
}

// Write writes to the server.
func (g *guard) Write(p []byte) (int, error) {
	n, err := g.Conn.Write(p)
	g.stats.written.Add(int64(n))
	return n, err
}

// counters count what one node cost.
type counters struct {
	dials, handshakes, commands, read, written atomic.Int64
}

// Stats is what a node cost so far.
type Stats struct {
	Dials      int64 // TCP connections begun, those to jump hosts included
	Handshakes int64 // logins that succeeded, those to jump hosts included
	Commands   int64 // probe commands sent
	Read       int64 // bytes received, before decryption, jump hosts and the node within both counted
	Written    int64 // bytes sent
}

// snapshot returns the counts as they stand.
func (c *counters) snapshot() Stats {
	return Stats{
		Dials:      c.dials.Load(),
		Handshakes: c.handshakes.Load(),
		Commands:   c.commands.Load(),
		Read:       c.read.Load(),
		Written:    c.written.Load(),
	}
}
