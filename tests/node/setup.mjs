// What the tests of all clients share.
export const url = process.env.TANDEM_URL;
export const key = process.env.TANDEM_KEY;
export const model = process.env.TANDEM_MODEL;
export const greeting = process.env.TANDEM_GREETING;

export const weatherParameters = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
export const long = 'many words '.repeat(9000);

// The client that is tested must not be able to hang the run.
export const timeout = 20_000;
