"""The Trainer of transformers, with accumulation."""

import transformers

transformers.set_seed(0)
transformers.logging.set_verbosity_error()
config = transformers.BertConfig(
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
)
model = transformers.BertForSequenceClassification(config)
dataset = [{"input_ids": [number, 2, 3, 4], "labels": number % 2} for number in range(5, 37)]
args = transformers.TrainingArguments(
    "trained",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=4,
    logging_steps=1,
    report_to="none",
    use_cpu=True,
    save_strategy="no",
    disable_tqdm=True,
)
trainer = transformers.Trainer(model, args, train_dataset=dataset)
trainer.remove_callback(transformers.PrinterCallback)  # It prints times.
result = trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
print(losses, result.training_loss, model.classifier.weight.sum().item())
