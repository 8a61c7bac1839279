//go:build race

package scan

// raceDetector says that the test was built with -race.
const raceDetector = true
