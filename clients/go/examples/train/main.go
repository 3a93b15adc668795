// Train is a trial's own program: it fits a line to noisy points by gradient descent, and is paused and resumed at rungs.
//
//	go build -o train-go ./examples/train
//
// A study names it in its template: `trial: {command: ["./train-go"]}`. Run by hand, it trains with the parameters below.
package main

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"github.com/headrace/headrace/clients/go/headrace"
	"github.com/headrace/headrace/clients/go/headrace/trial"
)

// model is everything that the next step reads, and so everything in a checkpoint: the line, its momentum, and the
// random numbers.
type model struct {
	Slope, Intercept             float64
	SlopeSpeed, InterceptSpeed   float64
	Generator                    []byte
	source                       *rand.PCG
	learningRate, momentumFactor float64
}

func main() {
	trial.Main(train, trial.ByHand(headrace.Params{"lr": 0.05, "momentum": 0.5}, 9))
}

func train(ctx context.Context, t *trial.Trial) error {
	fitted, err := newModel(t)
	if err != nil {
		return err
	}
	pause, err := time.ParseDuration("0" + os.Getenv("STEP_PAUSE")) // a slower program, to watch it
	if err != nil {
		return err
	}
	for range t.Steps(ctx) {
		loss := fitted.step()
		time.Sleep(pause)
		if err := t.Report(ctx, map[string]float64{"loss": loss}); err != nil {
			return err
		}
	}
	return nil
}

func newModel(t *trial.Trial) (*model, error) {
	var params struct {
		LR       float64 `param:"lr"`
		Momentum float64 `param:"momentum"`
	}
	if err := t.Params.Decode(&params); err != nil {
		return nil, err
	}
	made := &model{source: rand.NewPCG(uint64(t.Seed()), 0), learningRate: params.LR, momentumFactor: params.Momentum}
	if err := t.Track("model", trial.JSON(made)); err != nil {
		return nil, err
	}
	if t.Resumed() {
		return made, made.source.UnmarshalBinary(made.Generator)
	}
	return made, nil
}

// step takes 64 steps of gradient descent and returns their mean loss.
func (m *model) step() float64 {
	draw := rand.New(m.source)
	const points = 64
	loss := 0.0
	for range points {
		x := draw.NormFloat64()
		residual := m.Slope*x + m.Intercept - (3*x - 1 + 0.1*draw.NormFloat64())
		loss += residual * residual / points
		m.SlopeSpeed = m.momentumFactor*m.SlopeSpeed - m.learningRate*residual*x
		m.InterceptSpeed = m.momentumFactor*m.InterceptSpeed - m.learningRate*residual
		m.Slope += m.SlopeSpeed
		m.Intercept += m.InterceptSpeed
	}
	m.Generator, _ = m.source.MarshalBinary() // it never fails
	return loss
}
