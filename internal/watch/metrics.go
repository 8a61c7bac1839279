package watch

import (
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// namespace begins the names of all metrics but those of the Go runtime and the
// process.
const namespace = "etcd_fleet"

// scrapeTime bounds one answer of /metrics. maxScrapes bounds how many are
// worked on at once.
const (
	scrapeTime = 10 * time.Second
	maxScrapes = 4
)

// metrics counts what the daemon does. What is so at the moment, such as the
// ISOs by value, is found when it is asked for.
type metrics struct {
	registry *prometheus.Registry

	rounds        *prometheus.CounterVec
	roundStart    prometheus.Gauge
	roundDuration prometheus.Gauge
	roundSuccess  prometheus.Gauge
	lastSuccess   prometheus.Gauge
	looks         *prometheus.CounterVec
	lookDuration  *prometheus.HistogramVec
	bytesRead     prometheus.Counter
	requests      *prometheus.CounterVec
	decisions     *prometheus.CounterVec
	reloads       *prometheus.CounterVec
	reloadSuccess prometheus.Gauge
}

// The values of labels that are known beforehand. Their series begin at zero, so
// that the first increase shows.
var (
	trueOrFalse   = []string{"true", "false"}
	lookReasons   = []string{"round", "request"}
	lookResults   = []string{string(inspect.Included), string(inspect.Missing), string(inspect.Broken), "failed"}
	decisionNames = []string{"allow", "refuse", "allow_unchecked", "not_asked"}
)

func newMetrics(d *daemon, version string) *metrics {
	opts := func(name, help string) prometheus.Opts {
		return prometheus.Opts{Namespace: namespace, Name: name, Help: help}
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts(opts(name, help)))
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts(opts(name, help)), labels)
	}
	m := &metrics{
		registry:      prometheus.NewRegistry(),
		rounds:        counters("rounds_total", "Rounds over all stores and URLs, by whether all of them could be read.", "success"),
		roundStart:    gauge("round_start_timestamp_seconds", "When the last round that has ended began."),
		roundDuration: gauge("round_duration_seconds", "How long the last round took."),
		roundSuccess:  gauge("round_success", "Whether the last round could read all stores and URLs."),
		lastSuccess:   gauge("round_last_success_timestamp_seconds", "When the last round that could read all stores and URLs ended."),
		looks:         counters("looks_total", "Looks at ISOs, by what asked for them and what came of it.", "by", "result"),
		lookDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "look_duration_seconds", Help: "How long looks at ISOs took.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30, 60, 120},
		}, []string{"by"}),
		bytesRead: prometheus.NewCounter(prometheus.CounterOpts(opts("read_bytes_total", "Bytes read from ISOs in rounds."))),
		requests:  counters("http_requests_total", "HTTP requests by endpoint, method and status.", "endpoint", "method", "code"),
		decisions: counters("admit_decisions_total", "Decisions about requests for clusters.", "result"),
		reloads:   counters("config_reloads_total", "Times the configuration was read again, by whether it was taken over.", "success"),
		reloadSuccess: gauge("config_last_reload_successful",
			"Whether the configuration was taken over the last time it was read."),
	}
	for _, v := range trueOrFalse {
		m.rounds.WithLabelValues(v)
		m.reloads.WithLabelValues(v)
	}
	for _, by := range lookReasons {
		m.lookDuration.WithLabelValues(by)
		for _, v := range lookResults {
			m.looks.WithLabelValues(by, v)
		}
	}
	for _, v := range decisionNames {
		m.decisions.WithLabelValues(v)
	}
	m.reloadSuccess.Set(1)
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Version of the program; the value is always 1.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version(), "rules": strconv.Itoa(inspect.Rules)},
	})
	build.Set(1)
	m.registry.MustRegister(m.rounds, m.roundStart, m.roundDuration, m.roundSuccess, m.lastSuccess, m.looks, m.lookDuration,
		m.bytesRead, m.requests, m.decisions, m.reloads, m.reloadSuccess, build, state{d},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler serves the metrics.
func (m *metrics) handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // what there is, is better than nothing
		MaxRequestsInFlight: maxScrapes,
		Timeout:             scrapeTime,
	})
}

// request counts a request. Methods are the client's to choose, so all but the
// usual ones are one.
func (m *metrics) request(endpoint, method string, status int) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(endpoint, method, strconv.Itoa(status)).Inc()
}

// decision counts a decision.
func (m *metrics) decision(d admit.Decision) {
	name := "allow_unchecked"
	switch {
	case d.Code == reason.NotAsked:
		name = "not_asked"
	case !d.Allow:
		name = "refuse"
	case d.Checked:
		name = "allow"
	}
	m.decisions.WithLabelValues(name).Inc()
}

// look counts a look: by is "round" or "request".
func (m *metrics) look(by string, value inspect.Value, err error, took time.Duration) {
	result := string(value)
	if err != nil || !value.Yes() && !value.No() {
		result = "failed"
	}
	m.looks.WithLabelValues(by, result).Inc()
	m.lookDuration.WithLabelValues(by).Observe(took.Seconds())
}

// roundLook counts a look that a round began.
func (m *metrics) roundLook(v inspect.Value, err error, took time.Duration) {
	m.look("round", v, err, took)
}

// round notes a round that has ended. Its looks were counted while it ran.
func (m *metrics) round(r scan.Round, success bool) {
	m.rounds.WithLabelValues(strconv.FormatBool(success)).Inc()
	m.roundStart.Set(seconds(r.Started))
	m.roundDuration.Set(r.Took.Seconds())
	m.roundSuccess.Set(boolValue(success))
	if success {
		m.lastSuccess.Set(seconds(r.Started.Add(r.Took)))
	}
	m.bytesRead.Add(float64(r.Bytes))
}

// seconds is t as Prometheus writes it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// requestLook counts a look that a request asked for.
func (m *metrics) requestLook(a answers.Answer, err error, took time.Duration) {
	m.look("request", a.Value, err, took)
}

// reload counts a reload.
func (m *metrics) reload(err error) {
	m.reloads.WithLabelValues(strconv.FormatBool(err == nil)).Inc()
	m.reloadSuccess.Set(boolValue(err == nil))
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Descriptions of what is found when it is asked for.
var (
	descISOs = prometheus.NewDesc(namespace+"_isos", "ISOs by what is known of them; one with copies in several zones counts in each.",
		[]string{"value", "zone"}, nil)
	descLimit = prometheus.NewDesc(namespace+"_isos_left_alone",
		"ISOs that are not tried again in the background until they change, since too many looks failed.", []string{"zone"}, nil)
	descFailures = prometheus.NewDesc(namespace+"_iso_failures",
		"Failed looks in the background at ISOs without an answer.", []string{"zone"}, nil)
	descIncomplete = prometheus.NewDesc(namespace+"_copies_unusable",
		"Copies that are not looked at, since they are not complete or their store cannot be read.", []string{"zone"}, nil)
	descLost = prometheus.NewDesc(namespace+"_lost_workers",
		"Workers held by file system calls that have not come back.", nil, nil)
	descStores = prometheus.NewDesc(namespace+"_configured", "Stores and URLs in the configuration.", []string{"kind"}, nil)
)

// A state collects what is so at the moment.
type state struct{ daemon *daemon }

func (state) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descISOs, descLimit, descFailures, descIncomplete, descLost, descStores} {
		out <- d
	}
}

func (s state) Collect(out chan<- prometheus.Metric) {
	now := s.daemon.current.Load()
	if now == nil {
		return
	}
	type counts struct {
		values                     map[inspect.Value]int
		left, failures, incomplete int
	}
	zones := make(map[string]*counts)
	in := func(zone string) *counts {
		if zones[zone] == nil {
			zones[zone] = &counts{values: make(map[inspect.Value]int)}
		}
		return zones[zone]
	}
	for _, s := range now.Stores {
		in(s.Zone)
	}
	for _, u := range now.URLs {
		in(u.Zone)
	}
	for _, i := range now.list() {
		seen := make(map[string]bool)
		for _, c := range i.Copies {
			z := in(c.Zone)
			if c.Err != nil {
				z.incomplete++
			}
			if seen[c.Zone] {
				continue
			}
			seen[c.Zone] = true
			z.values[valueOf(i)]++
			if leftAlone(i, now.FailureLimit) {
				z.left++
			}
			if i.Answer == nil && i.Failure != nil {
				z.failures += i.Failure.Count
			}
		}
	}
	send := func(d *prometheus.Desc, v int, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
	}
	for zone, z := range zones {
		for _, v := range []inspect.Value{inspect.Included, inspect.Missing, inspect.Broken, inspect.Unknown} {
			send(descISOs, z.values[v], string(v), zone)
		}
		send(descLimit, z.left, zone)
		send(descFailures, z.failures, zone)
		send(descIncomplete, z.incomplete, zone)
	}
	send(descLost, now.lost())
	send(descStores, len(now.Stores), "store")
	send(descStores, len(now.URLs), "url")
}
