// Trial is the trial program of the conformance suite in tests/conformance, written with the Go runtime.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	"github.com/headrace/headrace/clients/go/headrace/trial"
)

func main() {
	trial.Main(train, trial.ByHand(headrace.Params{"x": 0.5}, 9))
}

// state is two whole numbers, in its own file.
type state struct {
	Step int64 `json:"step"`
	Sum  int64 `json:"sum"`
}

func (s *state) Save(folder string) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "state.json"), data, 0o600)
}

func (s *state) Load(folder string) error {
	data, err := os.ReadFile(filepath.Join(folder, "state.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, s)
}

func train(ctx context.Context, t *trial.Trial) error {
	params := struct {
		X       float64 `param:"x"`
		Save    int64   `param:"save"`
		PauseS  float64 `param:"pause_s"`
		FailsAt int64   `param:"fails_at"`
	}{FailsAt: -1}
	if err := t.Params.Decode(&params); err != nil {
		return err
	}
	var at state
	if err := t.Track("", &at); err != nil {
		return err
	}
	if params.Save == 1 {
		t.SaveEvery(1)
	}
	for step := range t.Steps(ctx) {
		at.Step, at.Sum = step, (at.Sum*31+step)%1000003
		time.Sleep(time.Duration(params.PauseS * float64(time.Second)))
		if step == params.FailsAt {
			return errors.New("fails as told")
		}
		err := t.Report(ctx, map[string]float64{"loss": params.X + 1/float64(step), "sum": float64(at.Sum)})
		if err != nil {
			return err
		}
	}
	return nil
}
