//go:build !race

package scan

// raceDetector says that the test was built without -race.
const raceDetector = false
